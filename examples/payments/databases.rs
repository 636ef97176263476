use std::{str::FromStr, sync::Arc, time::Duration};

use sqlx::{
    Database, Pool, Sqlite,
    pool::PoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tower_idempotency::{sqlite::TransactionStore, store::Store};

use crate::BoxError;

/// How long a charge waits for its turn: SQLite runs them one after the other, and some take two seconds; the others run one
/// for each connection of the pool.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A database with the application's tables, and the store that keeps the keys next to them.
pub(crate) struct Opened<DB: Database> {
    pub(crate) pool: Pool<DB>,
    pub(crate) store: Arc<dyn Store>,
}

/// With a write-ahead log, so that others read while a charge runs.
pub(crate) async fn sqlite(url: &str) -> Result<Opened<Sqlite>, BoxError> {
    let options = SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .foreign_keys(true)
        .busy_timeout(PATIENCE);
    let pool = pool_options().connect_with(options).await?;
    sqlx::raw_sql(include_str!("schema/sqlite.sql"))
        .execute(&pool)
        .await?;
    let store = TransactionStore::new(pool.clone());
    store.migrate().await?;
    let store = Arc::new(store);
    Ok(Opened { pool, store })
}

fn pool_options<DB: Database>() -> PoolOptions<DB> {
    PoolOptions::new().acquire_timeout(PATIENCE)
}
