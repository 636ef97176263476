//! A server, and what is on it, seen past the proxy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, StatusCode};
use redis::{Client, FromRedisValue};
use tokio::sync::OnceCell;
use tower_idempotency::{
    Fingerprint, IdempotencyKey, RecordKey, RedisStore, SavedResponse, Scope, Tag,
    store::{Nonce, Record, Reservation, Store, StoreKind, Terms},
};

use super::{Server, pool::connect, shared_server};

/// A server. Clones are the same.
#[derive(Clone, Debug)]
pub struct World {
    pub url: String,
    /// Past the proxy.
    direct: Client,
}

impl World {
    /// The server that the tests share: each request has an account of its own. `None` without a server.
    pub async fn shared() -> Option<Self> {
        static KNOWN: OnceCell<()> = OnceCell::const_new();
        let world = Self::at(shared_server()?);
        KNOWN.get_or_init(|| world.make_scripts_known()).await;
        Some(world)
    }

    pub async fn on(server: &Server) -> Self {
        let world = Self::at(server);
        world.make_scripts_known().await;
        world
    }

    fn at(server: &Server) -> Self {
        let url = server.url().to_owned();
        let direct = Client::open(&*url).expect("a URL");
        Self { url, direct }
    }

    /// A store over this connection.
    pub fn store(_: StoreKind, connected: RedisStore) -> Arc<dyn Store> {
        Arc::new(connected)
    }

    /// A store past the proxy.
    pub fn direct_store(&self, _: StoreKind) -> Arc<dyn Store> {
        Arc::new(connect(&self.url, 1, Duration::ZERO))
    }

    /// What is recorded for a key.
    pub async fn record(&self, kind: StoreKind, key: &str) -> Option<Record> {
        let key = IdempotencyKey::new(key).expect("a key");
        let key = RecordKey::derive("", &Scope::single_tenant(), &key);
        let record = self.direct_store(kind).inspect(&key).await;
        record.expect("a direct connection")
    }

    /// Charges this account past the proxy.
    pub async fn charge(&self, account: &str) {
        let () = self.get(&["INCR", &charges_of(account)]).await;
    }

    /// How often this account was charged.
    pub async fn charges(&self, account: &str) -> i64 {
        let charges: Option<i64> = self.get(&["GET", &charges_of(account)]).await;
        charges.unwrap_or_default()
    }

    /// What the server says past the proxy.
    pub async fn get<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let connection = self.direct.get_multiplexed_async_connection().await;
        let mut connection = connection.expect("a direct connection");
        let (name, arguments) = command.split_first().expect("a command");
        let mut command = redis::cmd(name);
        let answer = command.arg(arguments).query_async(&mut connection).await;
        answer.expect("an answer")
    }

    /// From here on they are called by their digests.
    async fn make_scripts_known(&self) {
        let (store, long) = (self.direct_store(StoreKind::Lease), Duration::from_secs(60));
        let response = SavedResponse::new(StatusCode::OK, HeaderMap::new(), "".into(), None);
        for byte in [1, 2] {
            let key = RecordKey::from_bytes([byte; 32]);
            let fingerprint = Fingerprint::new(Tag::from_u16(0x0101), [byte; 32]);
            let terms = Terms::new(Nonce::random(), long, long);
            store.forget(&key).await.expect("a direct connection");
            let reserved = store.reserve(&key, &fingerprint, &terms).await;
            let Ok(Reservation::Acquired(claim)) = reserved else {
                panic!("not acquired: {reserved:?}");
            };
            store.renew(&claim, long).await.expect("a renewal");
            let settled = match byte {
                1 => store.release(&claim).await,
                _ => store.complete(&claim, &response, long).await,
            };
            settled.expect("a settlement");
        }
    }
}

/// An account that no other test has, to be charged under a key that reads the same.
pub fn new_account() -> String {
    static ACCOUNTS: AtomicUsize = AtomicUsize::new(0);
    format!("account-{}", ACCOUNTS.fetch_add(1, Ordering::Relaxed))
}

/// Of records, also on a server that had others before.
pub fn prefix() -> String {
    format!("faults-{}", std::process::id())
}

fn charges_of(account: &str) -> String {
    format!("charges-{}:{account}", std::process::id())
}
