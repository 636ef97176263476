//! A database file per test, and short names for what a store is called with.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

#[path = "../store_support/mod.rs"]
mod store_support;

use std::time::Duration;

use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
pub(crate) use store_support::*;
use tempfile::TempDir;

/// A database file that goes with the test, and how its pools connect.
pub(crate) struct File {
    options: SqliteConnectOptions,
    directory: TempDir,
}

impl File {
    pub(crate) fn new(mode: SqliteJournalMode) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(directory.path().join("test.db"))
            .create_if_missing(true)
            .journal_mode(mode);
        Self { options, directory }
    }

    pub(crate) fn wal() -> Self {
        Self::new(SqliteJournalMode::Wal)
    }

    pub(crate) async fn pool(&self, size: u32) -> SqlitePool {
        self.pool_with(size, Duration::from_secs(30)).await
    }

    pub(crate) async fn pool_with(&self, size: u32, busy_timeout: Duration) -> SqlitePool {
        SqlitePoolOptions::new()
            .max_connections(size)
            .connect_with(self.options.clone().busy_timeout(busy_timeout))
            .await
            .unwrap()
    }

    /// Whether these bytes are anywhere in the database, its log included.
    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        let files = std::fs::read_dir(self.directory.path()).unwrap();
        files
            .map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .any(|file| file.windows(bytes.len()).any(|part| part == bytes))
    }
}

/// One number, read through this pool.
pub(crate) async fn count(pool: &SqlitePool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

/// A pool with the tables of a small application in it.
pub(crate) async fn shop(file: &File, size: u32) -> SqlitePool {
    let pool = file.pool(size).await;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS accounts (id INTEGER PRIMARY KEY);
         CREATE TABLE IF NOT EXISTS charges (
             amount  INTEGER NOT NULL UNIQUE CHECK (amount > 0),
             account INTEGER REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED
         );",
    )
    .execute(&pool)
    .await
    .unwrap();
    pool
}

pub(crate) const CHARGES: &str = "SELECT count(*) FROM charges";
