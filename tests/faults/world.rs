//! A database, and what is in it, seen past the proxy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sqlx::AssertSqlSafe;
use tokio::sync::OnceCell;
use tower_idempotency::{
    IdempotencyKey, RecordKey, Scope,
    store::{Record, Store, StoreKind},
};

use super::{
    LeaseStore, Pool, PoolOptions, Server, TransactionStore, pool::charge_of, shared_server,
};

/// A database with both stores' tables, and those for charges and balances. Clones are the same.
#[derive(Clone, Debug)]
pub struct World {
    pub url: String,
    /// Past the proxy.
    pub direct: Pool,
}

impl World {
    /// The database that the tests of a backend share: each request has an account of its own. `None` without a server.
    pub async fn shared() -> Option<Self> {
        static URL: OnceCell<String> = OnceCell::const_new();
        let server = shared_server()?;
        let url = URL.get_or_init(|| made(server)).await;
        Some(Self::at(url))
    }

    /// A database of this server.
    pub async fn on(server: &Server) -> Self {
        Self::at(&made(server).await)
    }

    fn at(url: &str) -> Self {
        // Each test has a runtime of its own, to which its pools belong.
        let direct = PoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(60))
            .connect_lazy(url)
            .expect("a URL");
        let url = url.to_owned();
        Self { url, direct }
    }

    /// A store over this pool.
    pub fn store(kind: StoreKind, pool: Pool) -> Arc<dyn Store> {
        match kind {
            StoreKind::Lease => Arc::new(LeaseStore::new(pool)),
            StoreKind::Transaction => Arc::new(TransactionStore::new(pool)),
            _ => panic!("there are two kinds"),
        }
    }

    /// A store past the proxy.
    pub fn direct_store(&self, kind: StoreKind) -> Arc<dyn Store> {
        Self::store(kind, self.direct.clone())
    }

    /// What is recorded for a key.
    pub async fn record(&self, kind: StoreKind, key: &str) -> Option<Record> {
        let store = self.direct_store(kind);
        let key = IdempotencyKey::new(key).expect("a key");
        let key = RecordKey::derive("", &Scope::single_tenant(), &key);
        store.inspect(&key).await.expect("a direct connection")
    }

    /// Charges this account past the proxy.
    pub async fn charge(&self, account: &str) {
        let charged = sqlx::query(AssertSqlSafe(charge_of(account)));
        let charged = charged.execute(&self.direct).await;
        charged.expect("a direct connection");
    }

    /// How often this account was charged.
    pub async fn charges(&self, account: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM charges WHERE account = '{account}'");
        let counted = sqlx::query_scalar(AssertSqlSafe(sql));
        counted
            .fetch_one(&self.direct)
            .await
            .expect("a direct connection")
    }
}

/// An account that no other test has, to be charged under a key that reads the same.
pub fn new_account() -> String {
    static ACCOUNTS: AtomicUsize = AtomicUsize::new(0);
    format!("account-{}", ACCOUNTS.fetch_add(1, Ordering::Relaxed))
}

async fn made(server: &Server) -> String {
    let url = server.database().await;
    let pool = PoolOptions::new().max_connections(1).connect(&url).await;
    let pool = pool.expect("a connection");
    let leases = LeaseStore::new(pool.clone());
    leases.migrate().await.expect("a table");
    let transactions = TransactionStore::new(pool.clone());
    transactions.migrate().await.expect("a table");
    let charges = "CREATE TABLE charges (account VARCHAR(40) NOT NULL)";
    let balances = "CREATE TABLE balances (name VARCHAR(40) PRIMARY KEY, amount INT NOT NULL)";
    for table in [charges, balances] {
        sqlx::query(table).execute(&pool).await.expect("a table");
    }
    pool.close().await;
    url
}
