use std::{str::FromStr, sync::Arc, time::Duration};

use sqlx::{
    Database, Pool,
    pool::PoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tower_idempotency::store::Store;

use crate::BoxError;

/// How long a charge waits for its turn. SQLite lets one run at a time, and some take two seconds; the others let as many run as
/// the pool has connections.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A database with the application's tables, and a store that keeps the keys next to them.
pub(crate) struct Opened<DB: Database> {
    pub(crate) pool: Pool<DB>,
    pub(crate) store: Arc<dyn Store>,
}

/// With a write-ahead log, so that others read while a charge runs.
pub(crate) async fn sqlite(url: &str) -> Result<Opened<sqlx::Sqlite>, BoxError> {
    let options = SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .foreign_keys(true)
        .busy_timeout(PATIENCE);
    let pool = connect(options).await?;
    let tables = sqlx::raw_sql(include_str!("schema/sqlite.sql"));
    tables.execute(&pool).await?;
    let store = tower_idempotency::sqlite::TransactionStore::new(pool.clone());
    store.migrate().await?;
    let store = Arc::new(store);
    Ok(Opened { pool, store })
}

/// Two processes may make the file at once. For the lock that the change to a write-ahead log needs SQLite waits for nobody, whatever
/// the busy timeout; so this tries again.
async fn connect(options: SqliteConnectOptions) -> Result<sqlx::SqlitePool, sqlx::Error> {
    const BUSY: &str = "5";
    let mut attempts = 100;
    loop {
        attempts -= 1;
        match pool_options().connect_with(options.clone()).await {
            Err(sqlx::Error::Database(error))
                if error.code().as_deref() == Some(BUSY) && attempts > 0 =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            connected => return connected,
        }
    }
}

#[cfg(feature = "postgres")]
pub(crate) async fn postgres(url: &str) -> Result<Opened<sqlx::Postgres>, BoxError> {
    let pool = pool_options().connect(url).await?;
    let tables = sqlx::raw_sql(include_str!("schema/postgres.sql"));
    tables.execute(&pool).await?;
    let store = tower_idempotency::postgres::TransactionStore::new(pool.clone());
    store.migrate().await?;
    let store = Arc::new(store);
    Ok(Opened { pool, store })
}

/// MySQL or MariaDB.
#[cfg(feature = "mysql")]
pub(crate) async fn mysql(url: &str) -> Result<Opened<sqlx::MySql>, BoxError> {
    let pool = pool_options().connect(url).await?;
    let tables = sqlx::raw_sql(include_str!("schema/mysql.sql"));
    tables.execute(&pool).await?;
    let store = tower_idempotency::mysql::TransactionStore::new(pool.clone());
    store.migrate().await?;
    let store = Arc::new(store);
    Ok(Opened { pool, store })
}

fn pool_options<DB: Database>() -> PoolOptions<DB> {
    PoolOptions::new().acquire_timeout(PATIENCE)
}
