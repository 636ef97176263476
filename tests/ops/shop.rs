//! A service with a store, and a look at it from outside.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Connection, Database, Executor, Sqlite, SqlitePool};
use tempfile::TempDir;
#[cfg(feature = "mysql")]
use tower_idempotency::mysql;
#[cfg(feature = "postgres")]
use tower_idempotency::postgres;
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, Tag, sqlite,
    store::{Claim, ListRecords, Nonce, Reservation, StoreKind, Terms},
};

use crate::tool::{Told, ops};

pub const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

pub struct Shop {
    pub url: String,
    /// Through a pool of the test's own.
    pub store: Arc<dyn ListRecords>,
    _file: Option<TempDir>,
    #[cfg(feature = "redis")]
    _server: Option<crate::servers::Redis>,
}

impl Shop {
    async fn new(url: String, store: impl ListRecords) -> Option<Self> {
        Some(Self::over(url, store))
    }

    pub fn over(url: String, store: impl ListRecords) -> Self {
        Self {
            url,
            store: Arc::new(store),
            _file: None,
            #[cfg(feature = "redis")]
            _server: None,
        }
    }

    pub fn is_transaction(&self) -> bool {
        self.store.kind() == StoreKind::Transaction
    }

    pub fn table(&self) -> &'static str {
        match self.is_transaction() {
            true => "tower_idempotency_transactions",
            false => "tower_idempotency_leases",
        }
    }

    pub async fn ops(&self, arguments: &[&str]) -> Told {
        let mut all = vec![self.url.as_str()];
        all.extend(arguments);
        if self.is_transaction() {
            all.push("--transaction");
        }
        ops(&all).await
    }

    pub async fn has(&self, key: &RecordKey) -> bool {
        self.store.inspect(key).await.expect("a database").is_some()
    }

    pub async fn claim(&self, key: RecordKey) -> Claim {
        let terms = Terms::new(Nonce::random(), HOUR, HOUR);
        let fingerprint = Fingerprint::new(Tag::from_u16(0x0101), [1; 32]);
        match self.store.reserve(&key, &fingerprint, &terms).await {
            Ok(Reservation::Acquired(claim)) => claim,
            other => panic!("not acquired: {other:?}"),
        }
    }

    pub async fn complete(&self, key: RecordKey, response: &SavedResponse) {
        let claim = self.claim(key).await;
        let completed = self.store.complete(&claim, response, HOUR).await;
        completed.expect("a database");
    }

    /// Through a connection of its own.
    pub async fn execute(&self, sql: &str) {
        match self.url.split_once(':').expect("a scheme").0 {
            #[cfg(feature = "postgres")]
            "postgres" => execute::<sqlx::Postgres>(&self.url, sql).await,
            #[cfg(feature = "mysql")]
            "mysql" => execute::<sqlx::MySql>(&self.url, sql).await,
            _ => execute::<Sqlite>(&self.url, sql).await,
        }
    }
}

async fn execute<DB: Database>(url: &str, sql: &str)
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let mut connection = DB::Connection::connect(url).await.expect("a connection");
    let sql = AssertSqlSafe(sql.to_owned());
    let done = sqlx::raw_sql(sql).execute(&mut connection).await;
    done.expect("a statement that is right");
    connection.close().await.expect("a closed connection");
}

async fn file() -> (TempDir, String, SqlitePool) {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}/shop.db", directory.path().display());
    let pool = SqlitePool::connect(&format!("{url}?mode=rwc")).await;
    (directory, url, pool.expect("a pool"))
}

pub async fn sqlite_lease() -> Option<Shop> {
    let (directory, url, pool) = file().await;
    let store = sqlite::LeaseStore::new(pool);
    store.migrate().await.expect("a table");
    let _file = Some(directory);
    Some(Shop {
        _file,
        ..Shop::new(url, store).await?
    })
}

pub async fn sqlite_transaction() -> Option<Shop> {
    let (directory, url, pool) = file().await;
    let store = sqlite::TransactionStore::new(pool);
    store.migrate().await.expect("a table");
    let _file = Some(directory);
    Some(Shop {
        _file,
        ..Shop::new(url, store).await?
    })
}

/// One on a server; none where there is none.
#[cfg(any(feature = "mysql", feature = "postgres"))]
macro_rules! on_server {
    ($name:ident, $server:ident, $pool:ty, $module:ident::$store:ident) => {
        pub async fn $name() -> Option<Shop> {
            let url = crate::servers::$server()?.database().await;
            let pool = <$pool>::connect(&url).await.expect("a pool");
            let store = $module::$store::new(pool);
            store.migrate().await.expect("a table");
            Shop::new(url, store).await
        }
    };
}
#[cfg(feature = "postgres")]
on_server!(postgres_lease, postgres, sqlx::PgPool, postgres::LeaseStore);
#[cfg(feature = "postgres")]
on_server!(
    postgres_transaction,
    postgres,
    sqlx::PgPool,
    postgres::TransactionStore
);
#[cfg(feature = "mysql")]
on_server!(mysql_lease, mariadb, sqlx::MySqlPool, mysql::LeaseStore);
#[cfg(feature = "mysql")]
on_server!(
    mysql_transaction,
    mariadb,
    sqlx::MySqlPool,
    mysql::TransactionStore
);

/// One on a server of its own.
#[cfg(feature = "redis")]
pub async fn redis_lease() -> Option<Shop> {
    let server = crate::servers::Redis::start()?;
    let client = redis::Client::open(server.url()).expect("a client");
    let store = tower_idempotency::RedisStore::new(client);
    let shop = Shop::new(server.url().to_owned(), store).await?;
    Some(Shop {
        _server: Some(server),
        ..shop
    })
}
