//! Short names for what a store is called with, whatever its backend.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) mod sql_leases;

use std::{future::Future, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind, Tag,
    store::{Claim, Nonce, Reservation, Store, Terms},
};

pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const RETENTION: Duration = Duration::from_secs(600);
pub(crate) const INSTANT: Duration = Duration::from_millis(1);

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
        Reservation::Replay {
            response: saved, ..
        } => assert_eq!(*saved, response(body)),
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
