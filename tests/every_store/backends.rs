//! The stores under test, each on a database of its own, and the effects of handlers there.

#[cfg(all(unix, feature = "redis"))]
use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering},
};
use std::{any::Any, sync::Arc};

use http::Extensions;
#[cfg(all(unix, feature = "mysql"))]
use sqlx::{MySql, MySqlPool, mysql::MySqlPoolOptions};
#[cfg(all(unix, feature = "postgres"))]
use sqlx::{PgPool, Postgres, postgres::PgPoolOptions};
use sqlx::{Sqlite, SqlitePool};
#[cfg(all(unix, feature = "redis"))]
use tower_idempotency::RedisStore;
#[cfg(all(unix, feature = "mysql"))]
use tower_idempotency::mysql;
#[cfg(all(unix, feature = "postgres"))]
use tower_idempotency::postgres;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Scope, ScopeBy, Tx, sqlite,
    store::{ListRecords, Store, StoreKind},
};

#[cfg(all(unix, feature = "redis"))]
use crate::servers::RedisCluster;
use crate::{
    sqlite_support::{File, count},
    support::Runs,
};

const TABLE: &str = "CREATE TABLE effects (n INTEGER)";
const EFFECT: &str = "INSERT INTO effects VALUES (1)";
const EFFECTS: &str = "SELECT count(*) FROM effects";

/// Connections of a store.
pub const SIZE: u32 = 4;

/// One store under test.
pub struct Backend {
    pub store: Arc<dyn Store>,
    /// The same, if it lists its records.
    pub listing: Option<Arc<dyn ListRecords>>,
    /// The store's own connections; of a lease store, its handlers use them besides.
    pub pool: Pool,
    effects: Pool,
    _file: Option<File>,
}

/// A way into a database. Effects are in the store's for a transaction store, seen through a connection besides the store's.
#[derive(Clone)]
pub enum Pool {
    /// There is none: effects are in the counter of runs.
    None,
    Sqlite(SqlitePool),
    #[cfg(all(unix, feature = "postgres"))]
    Postgres(PgPool),
    #[cfg(all(unix, feature = "mysql"))]
    MySql(MySqlPool),
}

impl Backend {
    fn new(store: impl ListRecords, pool: Pool, effects: Pool) -> Option<Self> {
        let store = Arc::new(store);
        Some(Self {
            listing: Some(Arc::clone(&store) as Arc<dyn ListRecords>),
            store,
            pool,
            effects,
            _file: None,
        })
    }

    /// A lease store that doesn't list its records, and needs no pool.
    #[cfg(all(unix, feature = "redis"))]
    fn without_listing(store: impl Store) -> Option<Self> {
        Some(Self {
            store: Arc::new(store),
            listing: None,
            pool: Pool::None,
            effects: Pool::None,
            _file: None,
        })
    }

    pub fn layer(&self) -> IdempotencyLayer {
        self.layer_over(Arc::clone(&self.store))
    }

    /// With something around the store.
    pub fn layer_over(&self, store: impl Store) -> IdempotencyLayer {
        IdempotencyLayer::new(
            store,
            ScopeBy::parts(|parts| {
                parts
                    .headers
                    .get("x-scope")
                    .map_or(Some(Scope::single_tenant()), |scope| {
                        Scope::new(scope.as_bytes())
                    })
            }),
        )
    }

    pub fn is_transaction(&self) -> bool {
        self.store.kind() == StoreKind::Transaction
    }

    /// How often the effect happened for good.
    pub async fn effects(&self, runs: &Runs) -> usize {
        let count = match &self.effects {
            Pool::None => return runs.count(),
            Pool::Sqlite(pool) => count(pool, EFFECTS).await,
            #[cfg(all(unix, feature = "postgres"))]
            Pool::Postgres(pool) => sqlx::query_scalar(EFFECTS)
                .fetch_one(pool)
                .await
                .expect("a count"),
            #[cfg(all(unix, feature = "mysql"))]
            Pool::MySql(pool) => sqlx::query_scalar(EFFECTS)
                .fetch_one(pool)
                .await
                .expect("a count"),
        };
        usize::try_from(count).expect("a count")
    }
}

impl Pool {
    /// A connection, until it is dropped.
    pub async fn connection(&self) -> Box<dyn Any + Send> {
        const HELD: &str = "a connection";
        match self {
            Self::None => Box::new(()),
            Self::Sqlite(pool) => Box::new(pool.acquire().await.expect(HELD)),
            #[cfg(all(unix, feature = "postgres"))]
            Self::Postgres(pool) => Box::new(pool.acquire().await.expect(HELD)),
            #[cfg(all(unix, feature = "mysql"))]
            Self::MySql(pool) => Box::new(pool.acquire().await.expect(HELD)),
        }
    }
}

/// What a handler writes its effect in.
pub enum Transaction {
    Sqlite(Tx<Sqlite>),
    #[cfg(all(unix, feature = "postgres"))]
    Postgres(Tx<Postgres>),
    #[cfg(all(unix, feature = "mysql"))]
    MySql(Tx<MySql>),
}

impl Transaction {
    /// None on a lease store.
    pub fn take(request: &Extensions) -> Option<Self> {
        let taken = Tx::take(request).map(Self::Sqlite);
        #[cfg(all(unix, feature = "postgres"))]
        let taken = taken.or_else(|_| Tx::take(request).map(Self::Postgres));
        #[cfg(all(unix, feature = "mysql"))]
        let taken = taken.or_else(|_| Tx::take(request).map(Self::MySql));
        taken.ok()
    }

    pub async fn write(self) {
        match self {
            Self::Sqlite(mut tx) => sqlx::query(EFFECT).execute(&mut *tx).await.map(drop),
            #[cfg(all(unix, feature = "postgres"))]
            Self::Postgres(mut tx) => sqlx::query(EFFECT).execute(&mut *tx).await.map(drop),
            #[cfg(all(unix, feature = "mysql"))]
            Self::MySql(mut tx) => sqlx::query(EFFECT).execute(&mut *tx).await.map(drop),
        }
        .expect("an effect");
    }

    /// What a handler must not do.
    pub async fn commit(self) {
        match self {
            Self::Sqlite(mut tx) => sqlx::query("COMMIT").execute(&mut *tx).await.map(drop),
            #[cfg(all(unix, feature = "postgres"))]
            Self::Postgres(mut tx) => sqlx::query("COMMIT").execute(&mut *tx).await.map(drop),
            #[cfg(all(unix, feature = "mysql"))]
            Self::MySql(mut tx) => sqlx::query("COMMIT").execute(&mut *tx).await.map(drop),
        }
        .expect("a commit");
    }
}

pub async fn memory() -> Option<Backend> {
    Backend::new(MemoryStore::new(), Pool::None, Pool::None)
}

pub async fn sqlite_lease() -> Option<Backend> {
    let file = File::wal();
    let pool = file.pool(SIZE).await;
    let store = sqlite::LeaseStore::new(pool.clone());
    store.migrate().await.expect("a table");
    let backend = Backend::new(store, Pool::Sqlite(pool), Pool::None)?;
    Some(Backend {
        _file: Some(file),
        ..backend
    })
}

pub async fn sqlite_transaction() -> Option<Backend> {
    sqlite_transaction_of(SIZE).await
}

pub async fn sqlite_transaction_of(size: u32) -> Option<Backend> {
    let file = File::wal();
    let pool = file.pool(size).await;
    let store = sqlite::TransactionStore::new(pool.clone());
    store.migrate().await.expect("a table");
    let effects = file.pool(1).await;
    let made = sqlx::query(TABLE).execute(&effects).await;
    made.expect("a table");
    let backend = Backend::new(store, Pool::Sqlite(pool), Pool::Sqlite(effects))?;
    Some(Backend {
        _file: Some(file),
        ..backend
    })
}

#[cfg(all(unix, feature = "postgres"))]
async fn postgres_pool(url: &str, size: u32) -> PgPool {
    let pool = PgPoolOptions::new().max_connections(size).connect(url);
    pool.await.expect("a pool")
}

/// None without a server.
#[cfg(all(unix, feature = "postgres"))]
pub async fn postgres_lease() -> Option<Backend> {
    let url = crate::servers::postgres()?.database().await;
    let pool = postgres_pool(&url, SIZE).await;
    let store = postgres::LeaseStore::new(pool.clone());
    store.migrate().await.expect("a table");
    Backend::new(store, Pool::Postgres(pool), Pool::None)
}

/// None without a server.
#[cfg(all(unix, feature = "postgres"))]
pub async fn postgres_transaction() -> Option<Backend> {
    postgres_transaction_of(SIZE).await
}

#[cfg(all(unix, feature = "postgres"))]
pub async fn postgres_transaction_of(size: u32) -> Option<Backend> {
    let url = crate::servers::postgres()?.database().await;
    let pool = postgres_pool(&url, size).await;
    let store = postgres::TransactionStore::new(pool.clone());
    store.migrate().await.expect("a table");
    let effects = postgres_pool(&url, 1).await;
    let made = sqlx::query(TABLE).execute(&effects).await;
    made.expect("a table");
    Backend::new(store, Pool::Postgres(pool), Pool::Postgres(effects))
}

#[cfg(all(unix, feature = "mysql"))]
async fn mysql_pool(url: &str, size: u32) -> MySqlPool {
    let pool = MySqlPoolOptions::new().max_connections(size).connect(url);
    pool.await.expect("a pool")
}

/// None without a server.
#[cfg(all(unix, feature = "mysql"))]
pub async fn mysql_lease() -> Option<Backend> {
    let url = crate::servers::mariadb()?.database().await;
    let pool = mysql_pool(&url, SIZE).await;
    let store = mysql::LeaseStore::new(pool.clone());
    store.migrate().await.expect("a table");
    Backend::new(store, Pool::MySql(pool), Pool::None)
}

/// None without a server.
#[cfg(all(unix, feature = "mysql"))]
pub async fn mysql_transaction() -> Option<Backend> {
    mysql_transaction_of(SIZE).await
}

#[cfg(all(unix, feature = "mysql"))]
pub async fn mysql_transaction_of(size: u32) -> Option<Backend> {
    let url = crate::servers::mariadb()?.database().await;
    let pool = mysql_pool(&url, size).await;
    let store = mysql::TransactionStore::new(pool.clone());
    store.migrate().await.expect("a table");
    let effects = mysql_pool(&url, 1).await;
    let made = sqlx::query(TABLE).execute(&effects).await;
    made.expect("a table");
    Backend::new(store, Pool::MySql(pool), Pool::MySql(effects))
}

/// None without a server.
#[cfg(all(unix, feature = "redis"))]
pub async fn redis() -> Option<Backend> {
    let client = redis::Client::open(crate::servers::redis()?.url()).expect("a URL");
    let store = RedisStore::new(client).with_prefix(redis_prefix());
    Backend::without_listing(store)
}

/// None without a server.
#[cfg(all(unix, feature = "redis"))]
pub async fn redis_cluster() -> Option<Backend> {
    static CLUSTER: OnceLock<Option<RedisCluster>> = OnceLock::new();
    let start = || CLUSTER.get_or_init(RedisCluster::start);
    let cluster = tokio::task::block_in_place(start).as_ref()?;
    let client = redis::cluster::ClusterClient::new(cluster.urls()).expect("URLs");
    let store = RedisStore::cluster(client).with_prefix(redis_prefix());
    Backend::without_listing(store)
}

/// The tests share a server: each has records of its own.
#[cfg(all(unix, feature = "redis"))]
fn redis_prefix() -> String {
    static BACKENDS: AtomicUsize = AtomicUsize::new(0);
    let number = BACKENDS.fetch_add(1, Ordering::Relaxed);
    format!("{}-{number}", std::process::id())
}
