//! `Retry-After` of a key in flight: what the store says, in whole seconds and never less than one.
#![cfg(feature = "memory")]

mod support;

use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use support::{
    Body, Runs,
    handler::{creating, layer},
    post, send,
};
use tower::Layer;
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{Claim, Record, Reservation, Store, StoreKind, Terms},
};

/// A store in which every key is in flight for this long.
#[derive(Debug)]
struct Busy(Duration);

#[async_trait]
impl Store for Busy {
    async fn reserve(
        &self,
        _key: &RecordKey,
        _fingerprint: &Fingerprint,
        _terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        Ok(Reservation::in_flight(self.0))
    }

    async fn renew(&self, _claim: &Claim, _lease: Duration) -> Result<(), StoreError> {
        Err(StoreErrorKind::Other.into())
    }

    async fn complete(
        &self,
        _claim: &Claim,
        _response: &SavedResponse,
        _retention: Duration,
    ) -> Result<(), StoreError> {
        Err(StoreErrorKind::Other.into())
    }

    async fn release(&self, _claim: &Claim) -> Result<(), StoreError> {
        Err(StoreErrorKind::Other.into())
    }

    async fn abandon(&self, _claim: &Claim, _retention: Duration) -> Result<(), StoreError> {
        Err(StoreErrorKind::Other.into())
    }

    async fn inspect(&self, _key: &RecordKey) -> Result<Option<Record>, StoreError> {
        Ok(None)
    }

    async fn forget(&self, _key: &RecordKey) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn purge_expired(&self, _limit: u32) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Lease
    }
}

#[tokio::test]
async fn the_store_tells_when_to_ask_again() {
    let times = [(0, "1"), (1000, "1"), (1001, "2"), (7000, "7")];
    let times = times.map(|(millis, header)| (Duration::from_millis(millis), header));
    for (time, header) in times
        .into_iter()
        .chain([(Duration::MAX, "18446744073709551615")])
    {
        let store = Busy(time);
        let runs = Runs::default();
        let service = layer(store).layer(creating::<Body>(&runs));
        let refused = send(&service, post("k", "{}")).await;
        assert_eq!(refused.status(), StatusCode::CONFLICT);
        assert_eq!(refused.head.headers["retry-after"], header);
        assert_eq!(runs.count(), 0);
    }
}
