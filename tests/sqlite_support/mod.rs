//! A database file per test, and short names for what a store is called with.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

use std::{future::Future, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tempfile::TempDir;
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind, Tag,
    store::{Claim, Nonce, Reservation, Store, Terms},
};

pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const RETENTION: Duration = Duration::from_secs(600);
pub(crate) const INSTANT: Duration = Duration::from_millis(1);

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

/// A key that no other test has.
pub(crate) fn fresh_key() -> RecordKey {
    let mut bytes = [7; 32];
    bytes[..16].copy_from_slice(Nonce::random().as_bytes());
    RecordKey::from_bytes(bytes)
}

pub(crate) fn fingerprint(byte: u8) -> Fingerprint {
    Fingerprint::new(Tag::from_u16(0x0101), [byte; 32])
}

pub(crate) fn terms() -> Terms {
    Terms::new(Nonce::random(), LEASE, RETENTION)
}

pub(crate) fn response(body: &'static str) -> SavedResponse {
    let mut headers = HeaderMap::new();
    headers.insert("x-odd", http::HeaderValue::from_bytes(b"\xe4\xff").unwrap());
    SavedResponse::new(
        StatusCode::CREATED,
        headers,
        Bytes::from_static(body.as_bytes()),
        None,
    )
}

/// Claims a fresh or free key.
pub(crate) async fn claim(store: &dyn Store, key: &RecordKey, terms: &Terms) -> Claim {
    match store.reserve(key, &fingerprint(1), terms).await.unwrap() {
        Reservation::Acquired(claim) => claim,
        other => panic!("not acquired: {other:?}"),
    }
}

pub(crate) async fn reserve(store: &dyn Store, key: &RecordKey) -> Reservation {
    store.reserve(key, &fingerprint(1), &terms()).await.unwrap()
}

#[track_caller]
pub(crate) fn assert_kind<T: std::fmt::Debug>(result: Result<T, StoreError>, kind: StoreErrorKind) {
    assert_eq!(result.unwrap_err().kind(), kind);
}

#[track_caller]
pub(crate) fn assert_replays(reservation: &Reservation, body: &'static str) {
    match reservation {
        Reservation::Replay(saved) => assert_eq!(*saved, response(body)),
        other => panic!("not a replay: {other:?}"),
    }
}

/// Polls until the condition holds; a test that waits in vain fails after a minute.
pub(crate) async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let limit = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), limit)
        .await
        .expect("the condition never held");
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
