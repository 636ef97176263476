use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    extract::{self, Path},
    http::StatusCode,
};
use tokio::sync::watch;
use tower_idempotency::{
    Fingerprint, MemoryStore, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{Claim, Record, Reservation, Store, StoreKind, Terms},
};

/// A store that can be made to fail or to hang, to see what that looks like.
#[derive(Clone, Debug)]
pub(crate) struct SwitchedStore {
    records: MemoryStore,
    state: Arc<watch::Sender<State>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    #[default]
    Up,
    Down,
    Hangs,
}

impl SwitchedStore {
    pub(crate) fn new() -> Self {
        Self {
            records: MemoryStore::new(),
            state: Arc::default(),
        }
    }

    /// `POST /store/down`, `/store/hangs` and `/store/up`.
    pub(crate) async fn switch(
        extract::State(store): extract::State<Self>,
        Path(state): Path<String>,
    ) -> Result<StatusCode, StatusCode> {
        let state = match state.as_str() {
            "up" => State::Up,
            "down" => State::Down,
            "hangs" => State::Hangs,
            _ => return Err(StatusCode::NOT_FOUND),
        };
        store.state.send_replace(state);
        Ok(StatusCode::NO_CONTENT)
    }

    /// Waits while it hangs.
    async fn up(&self) -> Result<&MemoryStore, StoreError> {
        let mut state = self.state.subscribe();
        match state.wait_for(|state| *state != State::Hangs).await {
            Ok(state) if *state == State::Up => Ok(&self.records),
            Ok(_) | Err(_) => Err(StoreErrorKind::Unavailable.into()),
        }
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
        self.up().await?.reserve(key, fingerprint, terms).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.up().await?.renew(claim, lease).await
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        self.up().await?.complete(claim, response, retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.up().await?.release(claim).await
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        self.up().await?.abandon(claim, retention).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.up().await?.inspect(key).await
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        self.up().await?.forget(key).await
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        self.up().await?.purge_expired(limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.up().await?.ping().await
    }

    fn kind(&self) -> StoreKind {
        self.records.kind()
    }
}
