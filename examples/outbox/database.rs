use std::path::PathBuf;

use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};

use crate::{BoxError, setting};

/// The shop and its relays share the first, the mail service has one of its own.
pub(crate) async fn shop() -> Result<SqlitePool, BoxError> {
    open("shop.db", SHOP).await
}

pub(crate) async fn mail() -> Result<SqlitePool, BoxError> {
    open("mail.db", MAIL).await
}

const SHOP: &str = "
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, quantity INTEGER NOT NULL) STRICT;
    -- Times are seconds of the database's clock. What was delivered may be deleted when no client retries its order any more: until
    -- then a key that the layer has forgotten is known here, and its order fails.
    CREATE TABLE IF NOT EXISTS outbox (
        key TEXT NOT NULL PRIMARY KEY,
        mail TEXT NOT NULL,
        claimed_until INTEGER NOT NULL DEFAULT 0,
        first_sent INTEGER,
        delivered INTEGER
    ) STRICT;
    CREATE INDEX IF NOT EXISTS undelivered ON outbox (claimed_until) WHERE delivered IS NULL;
";

const MAIL: &str =
    "CREATE TABLE IF NOT EXISTS sent (id INTEGER PRIMARY KEY, mail TEXT NOT NULL) STRICT;";

async fn open(name: &str, schema: &'static str) -> Result<SqlitePool, BoxError> {
    let directory = PathBuf::from(setting("DIRECTORY", "target/outbox"));
    std::fs::create_dir_all(&directory)?;
    let file = SqliteConnectOptions::new()
        .filename(directory.join(name))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePool::connect_with(file).await?;
    sqlx::raw_sql(schema).execute(&pool).await?;
    Ok(pool)
}
