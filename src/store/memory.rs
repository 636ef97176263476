mod access;
mod budget;
mod entry;
mod listing;
mod owned;
mod shard;
mod steps;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use tokio::time::Instant;

use self::{access::Access, budget::Budget, shard::Shard};
use super::{Claim, Record, Reservation, Steps, Store, StoreKind, Terms};
use crate::{Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind, event};

/// A lease store in this process's memory: for tests, and for services that run as one process and may forget
/// everything when it ends.
///
/// A clone shares the records, so that several layers, or all workers of a server, can use one store.
/// Two processes can't: behind a load balancer with a second replica, keys are not protected.
///
/// # Bounds
///
/// Nothing unexpired is ever evicted: a forgotten key is an operation that runs twice. Instead,
/// * with [`max_entries`](Self::with_max_entries) records in it, the store refuses new keys
///   with [`Full`](StoreErrorKind::Full); the keys that it has are answered as always;
/// * with [`max_bytes`](Self::with_max_bytes) of responses in it, it keeps the next ones as
///   [tombstones](SavedResponse::tombstone): the key stays protected, a retry learns that the answer wasn't kept. To the layer that is
///   [saved](crate::Outcome::Saved) all the same; an event tells of each (feature `tracing`). Notes of
///   [steps](crate::IdempotencyContext::step) count too, and are refused then.
///
/// A finished run is never refused: where the record of a claim was lost, `complete` and `abandon` bring it back,
/// over the bound if need be.
///
/// # Time
///
/// It reads tokio's clock, which stands still in tests that paused it, and the system's clock once, when it is made: so that the
/// [fences](crate::IdempotencyContext::fence) of a process that restarts go on above the last ones, unless that clock was put back. Expired records count as absent at once.
/// Each call removes a few of them, so memory is freed as long as there are calls;
/// [`purge_expired`](Store::purge_expired) frees it without.
///
/// ```
/// use tower_idempotency::MemoryStore;
///
/// let store = MemoryStore::new()
///     .with_max_entries(50_000)
///     .with_max_bytes(64 << 20);
/// assert!(store.is_empty());
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    created: Instant,
    /// When that was, by the clock on the wall: the fences of a process go on above those of the one before.
    epoch: Duration,
    budget: Budget,
    /// A std mutex, because it is never held over an await and is cheaper than tokio's.
    shards: [Mutex<Shard>; SHARDS],
}

/// Enough that two threads seldom meet, few enough that walking over all of them costs a few microseconds.
const SHARDS: usize = 64;

/// How many records one hold of a shard's lock purges, so that other threads get in between.
const PURGE_BATCH: usize = 256;

impl MemoryStore {
    /// How many records a store holds, unless told otherwise.
    ///
    /// At the default retention of 24 hours a million is 11 keyed requests per second, all day,
    /// and takes some 350 MB without the responses (measured on a 64-bit machine).
    pub const DEFAULT_MAX_ENTRIES: usize = 1_000_000;

    /// How many bytes of responses a store holds, unless told otherwise: 256 MiB, so that
    /// [a full store](Self::DEFAULT_MAX_ENTRIES) has room for small JSON answers, and large ones can't fill the memory.
    pub const DEFAULT_MAX_BYTES: usize = 256 << 20;

    /// An empty store with the default bounds.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            created: Instant::now(),
            epoch: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
            budget: Budget::new(Self::DEFAULT_MAX_ENTRIES, Self::DEFAULT_MAX_BYTES),
            shards: std::array::from_fn(|_| Mutex::default()),
        }))
    }

    /// At most this many records (default [`DEFAULT_MAX_ENTRIES`](Self::DEFAULT_MAX_ENTRIES)), for all clones.
    #[must_use]
    pub fn with_max_entries(self, max_entries: usize) -> Self {
        self.0.budget.entries.set_max(max_entries);
        self
    }

    /// At most this many bytes of responses (default [`DEFAULT_MAX_BYTES`](Self::DEFAULT_MAX_BYTES)), for all clones.
    ///
    /// Counted are bodies, headers and trailers, with an allowance for what a header map costs, and the notes of unsettled runs. They are
    /// copied, so that nothing else is held by what is kept of it.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: usize) -> Self {
        self.0.budget.bytes.set_max(max_bytes);
        self
    }

    /// How many records it holds, those included that expired and were not removed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.budget.entries.used()
    }

    /// Whether it holds no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes of responses and notes it holds, as [`with_max_bytes`](Self::with_max_bytes) counts them.
    #[must_use]
    pub fn response_bytes(&self) -> usize {
        self.0.budget.bytes.used()
    }

    /// Locks the shard of this key, and removes a few of its expired records.
    fn access(&self, key: &RecordKey) -> Access<'_> {
        // Record keys are digests, so any byte spreads them. A client that searches for keys of one shard
        // gains nothing but waits for its lock: within a shard the map has a secret hash.
        let [first, ..] = key.as_bytes();
        #[expect(clippy::indexing_slicing, reason = "the remainder is below the length")]
        let mut access = self.lock(&self.0.shards[usize::from(*first) % SHARDS]);
        access.sweep();
        access
    }

    fn lock<'a>(&'a self, shard: &'a Mutex<Shard>) -> Access<'a> {
        // Nothing panics while it holds the lock, and if it did, the other keys should go on.
        let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that time never runs backwards within a shard.
        Access::new(
            shard,
            &self.0.budget,
            self.0.epoch + self.0.created.elapsed(),
        )
    }

    /// Removes expired records, `limit` at most.
    fn purge(&self, limit: usize) -> usize {
        let mut left = limit;
        for shard in &self.0.shards {
            while left > 0 {
                let purged = self.lock(shard).purge(left.min(PURGE_BATCH));
                if purged == 0 {
                    break;
                }
                left -= purged;
            }
        }
        limit - left
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("entries", &self.0.budget.entries)
            .field("bytes", &self.0.budget.bytes)
            .finish_non_exhaustive()
    }
}

/// Every call answers on its first poll.
#[async_trait]
impl Store for MemoryStore {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        loop {
            if let Some(reservation) = self.access(key).reserve(key, fingerprint, terms) {
                return Ok(reservation);
            }
            // No room. Records that expired in other shards, which nothing visited since, must not count.
            if self.purge(1) == 0 {
                return Err(StoreErrorKind::Full.into());
            }
        }
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.access(claim.key()).renew(claim, lease)
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let is_kept = self
            .access(claim.key())
            .complete(claim, response, retention)?;
        if !is_kept {
            event::not_kept(claim.key(), "store_full");
        }
        Ok(())
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.access(claim.key()).release(claim)
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        self.access(claim.key()).abandon(claim, retention)
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        Ok(self.access(key).inspect(key))
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        Ok(self.access(key).forget(key))
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.purge(limit) as u64)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Lease
    }

    fn steps(&self) -> Option<&dyn Steps> {
        Some(self)
    }
}
