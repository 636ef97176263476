//! A store that notes what it is asked, and fails where it is told to.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tower_idempotency::{
    Fingerprint, MemoryStore, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{Claim, Record, Reservation, Store, StoreKind, Terms},
};

/// What a store can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Reserve,
    Renew,
    Complete,
    Release,
    Abandon,
    Inspect,
}

/// A [`MemoryStore`] whose calls are noted. Clones share notes and records.
#[derive(Clone, Debug)]
pub struct Spy {
    records: MemoryStore,
    notes: Arc<Mutex<Notes>>,
    kind: StoreKind,
}

#[derive(Debug, Default)]
struct Notes {
    calls: Vec<Call>,
    keys: Vec<RecordKey>,
    failing: HashMap<Call, StoreErrorKind>,
}

impl Spy {
    pub fn new() -> Self {
        Self::over(MemoryStore::new(), StoreKind::Lease)
    }

    /// Says that it is of this kind, whatever it does.
    pub fn over(records: MemoryStore, kind: StoreKind) -> Self {
        Self {
            records,
            notes: Arc::default(),
            kind,
        }
    }

    /// From now on this call fails, before it has done anything.
    pub fn failing(self, call: Call, kind: StoreErrorKind) -> Self {
        self.with(|notes| notes.failing.insert(call, kind));
        self
    }

    /// All calls so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.with(|notes| notes.calls.clone())
    }

    /// The record key of the last call.
    pub fn last_key(&self) -> RecordKey {
        self.with(|notes| *notes.keys.last().expect("a call"))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Notes) -> T) -> T {
        look(&mut self.notes.lock().expect("an unpoisoned lock"))
    }

    fn note(&self, call: Call, key: &RecordKey) -> Result<(), StoreError> {
        self.with(|notes| {
            notes.calls.push(call);
            notes.keys.push(*key);
            match notes.failing.get(&call) {
                None => Ok(()),
                Some(kind) => Err((*kind).into()),
            }
        })
    }
}

#[async_trait]
impl Store for Spy {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        self.note(Call::Reserve, key)?;
        self.records.reserve(key, fingerprint, terms).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.note(Call::Renew, claim.key())?;
        self.records.renew(claim, lease).await
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        self.note(Call::Complete, claim.key())?;
        self.records.complete(claim, response, retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.note(Call::Release, claim.key())?;
        self.records.release(claim).await
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        self.note(Call::Abandon, claim.key())?;
        self.records.abandon(claim, retention).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.note(Call::Inspect, key)?;
        self.records.inspect(key).await
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        self.records.forget(key).await
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        self.records.purge_expired(limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.records.ping().await
    }

    fn kind(&self) -> StoreKind {
        self.kind
    }
}
