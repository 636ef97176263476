use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    extract::{Path, State},
    http::StatusCode,
};
use tower_idempotency::{
    Fingerprint, MemoryStore, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{Claim, Record, Reservation, Store, StoreKind, Terms},
};

/// A store that can be made to fail, to see what that looks like.
#[derive(Clone, Debug)]
pub(crate) struct SwitchedStore {
    records: MemoryStore,
    down: Arc<AtomicBool>,
}

impl SwitchedStore {
    pub(crate) fn new() -> Self {
        Self {
            records: MemoryStore::new(),
            down: Arc::default(),
        }
    }

    /// `POST /store/down` and `POST /store/up`.
    pub(crate) async fn switch(
        State(store): State<Self>,
        Path(state): Path<String>,
    ) -> Result<StatusCode, StatusCode> {
        let down = match state.as_str() {
            "down" => true,
            "up" => false,
            _ => return Err(StatusCode::NOT_FOUND),
        };
        store.down.store(down, Ordering::Relaxed);
        Ok(StatusCode::NO_CONTENT)
    }

    fn up(&self) -> Result<&MemoryStore, StoreError> {
        if self.down.load(Ordering::Relaxed) {
            return Err(StoreErrorKind::Unavailable.into());
        }
        Ok(&self.records)
    }
}

#[async_trait]
impl Store for SwitchedStore {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        self.up()?.reserve(key, fingerprint, terms).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.up()?.renew(claim, lease).await
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        self.up()?.complete(claim, response, retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.up()?.release(claim).await
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        self.up()?.abandon(claim, retention).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.up()?.inspect(key).await
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        self.up()?.forget(key).await
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        self.up()?.purge_expired(limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.up()?.ping().await
    }

    fn kind(&self) -> StoreKind {
        self.records.kind()
    }
}
