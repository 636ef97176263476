//! A waiter that got a claim which it could not use: it gives it back, and what gives it back never meets its next one.
#![cfg(feature = "memory")]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use support::{
    Body,
    faulty::{Call, Fault, FaultyStore, pass},
    post,
    probe::{Probe, spawn_send},
};
use tower::Layer;
use tower_idempotency::{
    Fingerprint, IdempotencyLayer, MemoryStore, OnInFlight, RecordKey, SavedResponse, ScopeBy,
    StoreError, StoreErrorKind,
    store::{Claim, Record, RecordState, Reservation, Store, StoreKind, Terms},
};

/// The first inspection finds a record that is done, and that has expired when its answer arrives.
#[derive(Clone, Debug)]
struct ExpiresInBetween(FaultyStore, Arc<AtomicBool>);

#[async_trait]
impl Store for ExpiresInBetween {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        self.0.reserve(key, fingerprint, terms).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.0.renew(claim, lease).await
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        self.0.complete(claim, response, retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.0.release(claim).await
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        self.0.abandon(claim, retention).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        let mut found = self.0.inspect(key).await?;
        if !self.1.swap(true, Ordering::SeqCst) {
            let record = found.as_mut().expect("the first run's record");
            record.state = RecordState::Completed(SavedResponse::tombstone());
            self.0.forget(key).await?;
        }
        Ok(found)
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        self.0.forget(key).await
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        self.0.purge_expired(limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.0.ping().await
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Lease
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_gave_a_claim_back_keeps_its_next_one() {
    let store = FaultyStore::new(MemoryStore::new());
    let probe = Probe::new().shut();
    let expiring = ExpiresInBetween(store.clone(), Arc::default());
    let service = IdempotencyLayer::new(expiring, ScopeBy::single_tenant())
        .with_on_in_flight(OnInFlight::Wait(Duration::from_secs(60)))
        .layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    // What gives back the claim is done, but not heard of: it is repeated 100 ms later.
    store.then(
        Call::Release,
        Fault::LosesAnswer(StoreErrorKind::Unavailable),
    );
    let waiter = spawn_send(&service, post("k", "{}"));
    probe.started(2).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(store.count(Call::Release), 2);

    let third = spawn_send(&service, post("k", "{}"));
    pass(Duration::from_secs(5)).await;
    assert_eq!(probe.runs(), 2, "the waiter's run has its key");
    probe.open();
    assert_eq!(waiter.await.expect("an answer").text(), "run 2");
    assert!(third.await.expect("an answer").is_replay());
    drop(first.await);
}
