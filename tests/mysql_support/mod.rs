//! A database per test on the server of the test binary, and short names for what a store is called with.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

use std::{
    future::Future,
    str::FromStr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use sqlx::{
    AssertSqlSafe, Executor, MySqlPool,
    mysql::{MySqlConnectOptions, MySqlPoolOptions},
};
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind, Tag,
    mysql::{LeaseStore, TransactionStore},
    store::{Claim, Nonce, Reservation, Store, Terms},
};

use crate::servers;

pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const RETENTION: Duration = Duration::from_secs(600);
pub(crate) const INSTANT: Duration = Duration::from_millis(1);

/// A database that this test has for itself, and how its sessions are set.
pub(crate) struct Database {
    pub(crate) options: MySqlConnectOptions,
    isolation: &'static str,
}

impl Database {
    /// None if there is no server on this machine.
    pub(crate) async fn new() -> Option<Self> {
        Self::isolated("REPEATABLE READ").await
    }

    /// With this isolation as the default of its sessions.
    pub(crate) async fn isolated(isolation: &'static str) -> Option<Self> {
        let url = servers::mariadb()?.database().await;
        Some(Self::at(&url, isolation))
    }

    pub(crate) fn at(url: &str, isolation: &'static str) -> Self {
        let options = MySqlConnectOptions::from_str(url).unwrap();
        Self { options, isolation }
    }

    /// Sessions west and east of UTC take turns.
    pub(crate) async fn pool(&self, size: u32) -> MySqlPool {
        self.pool_with(size, self.options.clone()).await
    }

    pub(crate) async fn pool_with(&self, size: u32, options: MySqlConnectOptions) -> MySqlPool {
        let (isolation, made) = (self.isolation, AtomicUsize::new(0));
        MySqlPoolOptions::new()
            .max_connections(size)
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let zone = ZONES[made.fetch_add(1, Ordering::Relaxed) % ZONES.len()];
                Box::pin(async move {
                    let sql = format!(
                        "SET time_zone = '{zone}'; SET SESSION TRANSACTION ISOLATION LEVEL {isolation}"
                    );
                    connection.execute(AssertSqlSafe(sql)).await.map(drop)
                })
            })
            .connect_with(options)
            .await
            .unwrap()
    }

    pub(crate) async fn lease(&self, size: u32) -> LeaseStore {
        let store = LeaseStore::new(self.pool(size).await);
        store.migrate().await.unwrap();
        store
    }

    pub(crate) async fn transaction(&self, size: u32) -> TransactionStore {
        let store = TransactionStore::new(self.pool(size).await);
        store.migrate().await.unwrap();
        store
    }
}

/// New York's and Kiritimati's, by their offsets: not every server has the tables of names.
const ZONES: [&str; 2] = ["-05:00", "+14:00"];

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
            tokio::time::sleep(INSTANT).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), limit)
        .await
        .expect("the condition never held");
}
