use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreError,
    store::{Claim, Record, Reservation, Store, StoreKind, Terms},
};

use crate::{
    entry::{Entry, State},
    reserve::reserve,
};

/// A lease store in memory. Its clock is tokio's; that of a store in a database must be the database's.
#[derive(Clone, Debug)]
pub(crate) struct MapStore {
    entries: Arc<Mutex<HashMap<RecordKey, Entry>>>,
    created: Instant,
}

impl MapStore {
    pub(crate) fn new() -> Self {
        Self {
            entries: Arc::default(),
            created: Instant::now(),
        }
    }

    /// One atomic step on one entry, where an expired one counts as absent. In SQL it would be one statement.
    fn step<T>(&self, key: &RecordKey, step: impl FnOnce(&mut Option<Entry>) -> T) -> T {
        let mut entries = self.lock();
        let mut entry = entries.remove(key).filter(|entry| !entry.is_expired());
        let result = step(&mut entry);
        entries.extend(entry.map(|entry| (*key, entry)));
        result
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RecordKey, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for MapStore {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        let clock = u64::try_from(self.created.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(self.step(key, |entry| reserve(entry, key, fingerprint, terms, clock)))
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.step(claim.key(), |entry| Entry::renew(entry, claim, lease))
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let completed = State::Completed(response.clone());
        self.step(claim.key(), |entry| {
            Entry::settle(entry, claim, Some(completed), retention)
        })
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.step(claim.key(), |entry| {
            Entry::settle(entry, claim, None, Duration::ZERO)
        })
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        let abandoned = Some(State::Abandoned);
        self.step(claim.key(), |entry| {
            Entry::settle(entry, claim, abandoned, retention)
        })
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        Ok(self.step(key, |entry| entry.as_ref().map(Entry::record)))
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        Ok(self.step(key, |entry| entry.take().is_some()))
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        let mut entries = self.lock();
        let expired = entries.iter().filter(|(_, entry)| entry.is_expired());
        let keys: Vec<_> = expired.map(|(key, _)| *key).take(limit as usize).collect();
        for key in &keys {
            entries.remove(key);
        }
        Ok(keys.len() as u64)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Lease
    }
}
