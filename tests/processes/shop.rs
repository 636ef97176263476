//! A store on a server that two processes share, and where the effects of their handlers are.

use std::{
    convert::Infallible,
    ffi::OsStr,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Extensions, Request, Response, StatusCode};
use http_body_util::Full;
use tower::{service_fn, util::BoxCloneSyncService};
#[cfg(feature = "redis")]
use tower_idempotency::RedisStore;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use tower_idempotency::Tx;
use tower_idempotency::{IdempotencyContext, IdempotencyLayer, RequestBody, ScopeBy, store::Store};

use crate::{
    other::{OtherProcess, tell},
    support::{
        Body,
        faulty::FaultyStore,
        handler::{Gate, response},
    },
};

/// How long a killed process blocks its keys; also the time that a store call of a lease store has, three times over.
pub const LEASE: Duration = Duration::from_secs(6);
/// How many may wait in a process, for one key and in all.
pub const BOUNDS: (usize, usize) = (8, 12);

const KIND: &str = "IDEMPOTENCY_TEST_STORE";
const URL: &str = "IDEMPOTENCY_TEST_URL";
const NAME: &str = "IDEMPOTENCY_TEST_NAME";
const CONNECTIONS: &str = "IDEMPOTENCY_TEST_CONNECTIONS";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    #[cfg(feature = "postgres")]
    PostgresLeases,
    #[cfg(feature = "postgres")]
    PostgresTransactions,
    #[cfg(feature = "mysql")]
    MariaDbLeases,
    #[cfg(feature = "mysql")]
    MariaDbTransactions,
    #[cfg(feature = "redis")]
    Redis,
}

/// The store, seen from one of the processes.
pub struct Shop {
    kind: Kind,
    url: String,
    /// Apart from others on the same server.
    name: String,
    /// Around the store, to see its calls.
    pub store: FaultyStore,
    effects: Arc<dyn Effects>,
}

pub type Handler =
    BoxCloneSyncService<Request<RequestBody<Body>>, Response<Full<Bytes>>, Infallible>;

impl Shop {
    /// A new one. `None` without a server.
    pub async fn new(kind: Kind) -> Option<Self> {
        static SHOPS: AtomicUsize = AtomicUsize::new(0);
        let number = SHOPS.fetch_add(1, Ordering::Relaxed);
        let name = format!("processes-{}-{number}", std::process::id());
        let url = match kind {
            #[cfg(feature = "postgres")]
            Kind::PostgresLeases | Kind::PostgresTransactions => {
                crate::servers::postgres()?.database().await
            }
            #[cfg(feature = "mysql")]
            Kind::MariaDbLeases | Kind::MariaDbTransactions => {
                crate::servers::mariadb()?.database().await
            }
            #[cfg(feature = "redis")]
            Kind::Redis => crate::servers::redis()?.url().to_owned(),
        };
        let shop = Self::open(kind, url, name, 4).await;
        shop.effects.prepare().await;
        Some(shop)
    }

    /// That of the parent, with so many connections. `None` in a process that isn't the other one.
    pub async fn of_parent() -> Option<Self> {
        let told = |name| std::env::var(name).ok();
        let kind = told(KIND)?;
        let kinds = [
            #[cfg(feature = "postgres")]
            Kind::PostgresLeases,
            #[cfg(feature = "postgres")]
            Kind::PostgresTransactions,
            #[cfg(feature = "mysql")]
            Kind::MariaDbLeases,
            #[cfg(feature = "mysql")]
            Kind::MariaDbTransactions,
            #[cfg(feature = "redis")]
            Kind::Redis,
        ];
        let kind = kinds.into_iter().find(|known| known.to_string() == kind)?;
        let connections = told(CONNECTIONS)?.parse().expect("a number");
        Some(Self::open(kind, told(URL)?, told(NAME)?, connections).await)
    }

    async fn open(kind: Kind, url: String, name: String, connections: u32) -> Self {
        let (store, effects): (Arc<dyn Store>, Arc<dyn Effects>) = match kind {
            #[cfg(feature = "postgres")]
            Kind::PostgresLeases => {
                let store =
                    tower_idempotency::postgres::LeaseStore::new(postgres(&url, connections));
                store.migrate().await.expect("a table");
                (Arc::new(store), Arc::new(postgres(&url, 2)))
            }
            #[cfg(feature = "postgres")]
            Kind::PostgresTransactions => {
                let store =
                    tower_idempotency::postgres::TransactionStore::new(postgres(&url, connections));
                store.migrate().await.expect("a table");
                (Arc::new(store), Arc::new(postgres(&url, 2)))
            }
            #[cfg(feature = "mysql")]
            Kind::MariaDbLeases => {
                let store = tower_idempotency::mysql::LeaseStore::new(mariadb(&url, connections));
                store.migrate().await.expect("a table");
                (Arc::new(store), Arc::new(mariadb(&url, 2)))
            }
            #[cfg(feature = "mysql")]
            Kind::MariaDbTransactions => {
                let store =
                    tower_idempotency::mysql::TransactionStore::new(mariadb(&url, connections));
                store.migrate().await.expect("a table");
                (Arc::new(store), Arc::new(mariadb(&url, 2)))
            }
            #[cfg(feature = "redis")]
            Kind::Redis => {
                // It makes one, however many it may have.
                assert!(connections > 0);
                let client = redis::Client::open(&*url).expect("a URL");
                let store = RedisStore::new(client.clone()).with_prefix(&*name);
                let effects = OnRedis(client, name.clone());
                (Arc::new(store), Arc::new(effects))
            }
        };
        Self {
            kind,
            url,
            name,
            store: FaultyStore::new(store),
            effects,
        }
    }

    /// Starts the other process, with so many connections of its store.
    pub async fn other_process(&self, connections: u32) -> OtherProcess {
        let (kind, connections) = (self.kind.to_string(), connections.to_string());
        let environment = [
            (KIND, &*kind),
            (URL, &*self.url),
            (NAME, &*self.name),
            (CONNECTIONS, &*connections),
        ];
        let environment = environment.map(|(name, value)| (name, OsStr::new(value)));
        OtherProcess::start("waiting::the_other_process", environment).await
    }

    pub fn is_transaction(&self) -> bool {
        self.store.kind() == tower_idempotency::store::StoreKind::Transaction
    }

    pub fn layer(&self) -> IdempotencyLayer {
        IdempotencyLayer::new(self.store.clone(), ScopeBy::single_tenant())
            .with_lease(LEASE)
            .with_waiter_bounds(BOUNDS.0, BOUNDS.1)
    }

    /// Has its effect, and tells where it ran and in which attempt.
    pub fn handler(&self, place: &'static str, status: StatusCode) -> Handler {
        self.held_handler(place, status, None)
    }

    /// The same, and waits in between at the gate, if its key starts like this.
    pub fn held_handler(
        &self,
        place: &'static str,
        status: StatusCode,
        held: impl Into<Option<(&'static str, Gate)>>,
    ) -> Handler {
        let (effects, held) = (Arc::clone(&self.effects), held.into());
        BoxCloneSyncService::new(service_fn(move |request: Request<RequestBody<Body>>| {
            let (effects, held) = (Arc::clone(&effects), held.clone());
            async move {
                let context = request.extensions().get::<IdempotencyContext>();
                let context = context.expect("a keyed request").clone();
                let key = context.key().as_str();
                effects.add(request.extensions(), key).await;
                if let Some((_, gate)) = held.filter(|(start, _)| key.starts_with(start)) {
                    tell(&format!("effect {key}"));
                    gate.pass().await;
                }
                let text = format!("{place}, attempt {}", context.attempt());
                Ok(response(status, text))
            }
        }))
    }

    /// How often a key had its effect.
    pub async fn effects(&self, key: &str) -> i64 {
        self.effects.count(key).await
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Where effects are, seen through connections besides the store's.
#[async_trait]
trait Effects: Send + Sync {
    async fn prepare(&self);
    /// In the request's transaction, if it has one.
    async fn add(&self, request: &Extensions, key: &str);
    async fn count(&self, key: &str) -> i64;
}

#[cfg(feature = "postgres")]
fn postgres(url: &str, connections: u32) -> sqlx::PgPool {
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(connections);
    pool.connect_lazy(url).expect("a URL")
}

#[cfg(feature = "mysql")]
fn mariadb(url: &str, connections: u32) -> sqlx::MySqlPool {
    let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(connections);
    pool.connect_lazy(url).expect("a URL")
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
macro_rules! effects_in_a_database {
    ($backend:ty, $pool:ty) => {
        #[async_trait]
        impl Effects for $pool {
            async fn prepare(&self) {
                let table = "CREATE TABLE effects (name VARCHAR(40) NOT NULL)";
                sqlx::query(table).execute(self).await.expect("a table");
            }

            async fn add(&self, request: &Extensions, key: &str) {
                let sql = format!("INSERT INTO effects VALUES ('{key}')");
                let effect = sqlx::query(sqlx::AssertSqlSafe(sql));
                let added = match Tx::<$backend>::take(request) {
                    Ok(mut tx) => effect.execute(&mut *tx).await,
                    Err(_) => effect.execute(self).await,
                };
                added.expect("an effect");
            }

            async fn count(&self, key: &str) -> i64 {
                let sql = format!("SELECT count(*) FROM effects WHERE name = '{key}'");
                let count = sqlx::query_scalar(sqlx::AssertSqlSafe(sql));
                count.fetch_one(self).await.expect("a count")
            }
        }
    };
}

#[cfg(feature = "postgres")]
effects_in_a_database!(sqlx::Postgres, sqlx::PgPool);
#[cfg(feature = "mysql")]
effects_in_a_database!(sqlx::MySql, sqlx::MySqlPool);

/// A server, and what the names of the counters begin with.
#[cfg(feature = "redis")]
struct OnRedis(redis::Client, String);

#[cfg(feature = "redis")]
impl OnRedis {
    async fn ask<T: redis::FromRedisValue>(&self, command: &str, key: &str) -> T {
        let connection = self.0.get_multiplexed_async_connection().await;
        let mut connection = connection.expect("a connection");
        let mut command = redis::cmd(command);
        command.arg(format!("{}:effects:{key}", self.1));
        let answer = command.query_async(&mut connection).await;
        answer.expect("an answer")
    }
}

#[cfg(feature = "redis")]
#[async_trait]
impl Effects for OnRedis {
    async fn prepare(&self) {}

    async fn add(&self, _: &Extensions, key: &str) {
        self.ask("INCR", key).await
    }

    async fn count(&self, key: &str) -> i64 {
        self.ask::<Option<i64>>("GET", key)
            .await
            .unwrap_or_default()
    }
}
