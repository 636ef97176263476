//! Memory in the place of a database: `release` and `abandon` roll back, and a transaction loses where a test says so.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tower_idempotency::{
    Fingerprint, MemoryStore, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{Claim, Nonce, Record, Reservation, Store, StoreKind, Terms},
};

/// The calls that end a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Complete,
    Release,
    Abandon,
}

/// What a claim carries for the handler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transaction(pub Nonce);

/// A transaction store. Clones share everything.
#[derive(Clone, Debug)]
pub struct Database {
    records: MemoryStore,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    losing: HashMap<End, usize>,
    begun: Vec<Nonce>,
    open: Vec<Nonce>,
    commits: usize,
}

impl Database {
    pub fn new() -> Self {
        Self {
            records: MemoryStore::new(),
            state: Arc::default(),
        }
    }

    /// So many of the next transactions that end like this have lost.
    pub fn lose(&self, end: End, times: usize) {
        self.state().losing.insert(end, times);
    }

    /// The nonces of all transactions so far.
    pub fn begun(&self) -> Vec<Nonce> {
        self.state().begun.clone()
    }

    /// How many transactions are open.
    pub fn open(&self) -> usize {
        self.state().open.len()
    }

    /// How many have committed.
    pub fn commits(&self) -> usize {
        self.state().commits
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("an unpoisoned lock")
    }

    /// Ends the transaction, and tells whether it has lost.
    fn end(&self, claim: &Claim, end: End) -> bool {
        let mut state = self.state();
        state.open.retain(|nonce| *nonce != claim.nonce());
        match state.losing.get_mut(&end) {
            Some(times) if *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        }
    }

    async fn roll_back(&self, claim: &Claim, end: End) -> Result<(), StoreError> {
        let lost = self.end(claim, end);
        self.records.release(claim).await?;
        if lost {
            return Err(StoreErrorKind::Conflict.into());
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Database {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        let reservation = self.records.reserve(key, fingerprint, terms).await?;
        let Reservation::Acquired(claim) = reservation else {
            return Ok(reservation);
        };
        let mut state = self.state();
        state.begun.push(claim.nonce());
        state.open.push(claim.nonce());
        let transaction = Transaction(claim.nonce());
        Ok(Reservation::Acquired(claim.with_attachment(transaction)))
    }

    async fn renew(&self, _: &Claim, _: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        if self.end(claim, End::Complete) {
            self.records.release(claim).await?;
            return Err(StoreErrorKind::Conflict.into());
        }
        self.records.complete(claim, response, retention).await?;
        self.state().commits += 1;
        Ok(())
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.roll_back(claim, End::Release).await
    }

    async fn abandon(&self, claim: &Claim, _: Duration) -> Result<(), StoreError> {
        self.roll_back(claim, End::Abandon).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
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
        StoreKind::Transaction
    }
}
