use std::{env, process, time::Duration};

use async_trait::async_trait;
use axum::http::header::LOCATION;
use tower_idempotency::{
    Fingerprint, Identity, RecordKey, SavedResponse, StoreError, Tag,
    store::{Claim, Record, Reservation, Steps, Store, StoreKind, Terms},
};

use crate::BoxError;

/// Where a charge dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashPoint {
    BeforeCommit,
    AfterCommit,
}

impl CrashPoint {
    pub(crate) fn from_env() -> Result<Option<Self>, BoxError> {
        match env::var("PAYMENTS_CRASH").as_deref() {
            Err(env::VarError::NotPresent) => Ok(None),
            Ok("before-commit") => Ok(Some(Self::BeforeCommit)),
            Ok("after-commit") => Ok(Some(Self::AfterCommit)),
            _ => Err("PAYMENTS_CRASH: expected before-commit or after-commit".into()),
        }
    }
}

/// A store that kills the whole process where a charge is committed, as a power cut would.
#[derive(Debug)]
pub(crate) struct Crashing<S> {
    store: S,
    point: CrashPoint,
}

impl<S> Crashing<S> {
    pub(crate) fn new(store: S, point: CrashPoint) -> Self {
        Self { store, point }
    }

    fn crash_at(&self, point: CrashPoint, response: &SavedResponse) {
        // Of all answers only a charge has a location.
        let charge = response.headers().is_some_and(|h| h.contains_key(LOCATION));
        if charge && self.point == point {
            process::abort();
        }
    }
}

/// A decorator forwards everything, the methods with a default too: the inner store may have fingerprints of its own.
#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Crashing<S> {
    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        self.crash_at(CrashPoint::BeforeCommit, response);
        self.store.complete(claim, response, retention).await?;
        self.crash_at(CrashPoint::AfterCommit, response);
        Ok(())
    }

    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        self.store.reserve(key, fingerprint, terms).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.store.renew(claim, lease).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.store.release(claim).await
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        self.store.abandon(claim, retention).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.store.inspect(key).await
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        self.store.forget(key).await
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        self.store.purge_expired(limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.store.ping().await
    }

    fn kind(&self) -> StoreKind {
        self.store.kind()
    }

    fn fingerprint(&self, identity: &Identity<'_>) -> Fingerprint {
        self.store.fingerprint(identity)
    }

    fn fingerprint_as(&self, identity: &Identity<'_>, tag: Tag) -> Option<Fingerprint> {
        self.store.fingerprint_as(identity, tag)
    }

    fn steps(&self) -> Option<&dyn Steps> {
        self.store.steps()
    }
}
