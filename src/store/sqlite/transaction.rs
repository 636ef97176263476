mod outcome;

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{Sqlite, SqlitePool};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    error::{failed, is_busy},
    lookup::{Started, answer, read, start},
    schema::{self, Schema},
    settle::{commit, end},
    transaction_sql as sql, upkeep,
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{
        Claim, Record, Reservation, Store, StoreKind, Terms,
        sql::{
            ASK_AGAIN, Busy, End, Entry, Found, Guarded, Kept, Registry, Returned, Slot, begin,
            report_unused,
        },
    },
};

/// A transaction store in the application's SQLite database: key, the handler's writes and the response commit in one transaction.
///
/// The handler writes through [`Tx<Sqlite>`](crate::Tx). A response that is to be saved commits all of it; anything else, a crash
/// included, rolls all of it back, and a retry runs again.
///
/// SQLite has one writer at a time: a keyed request holds the writer lock from before its handler runs until it is settled, so
/// **keyed requests run one after the other**, and so does everything else that writes to the file. Keep handlers short, or use a
/// [`LeaseStore`](super::LeaseStore) in another file. In one process they queue without holding a connection, for as long as the
/// pool's `acquire_timeout`; against other processes the connection's `busy_timeout` is what counts. A request whose turn doesn't
/// come within the layer's store-call limit is answered 503, so raise all three for handlers that take seconds.
///
/// - A duplicate in another process only meets the writer lock: it waits, and gets the replay, or 503 where a duplicate in this
///   process gets 409.
/// - The layer's run limit drops the handler, and with it the wait for its statement, but SQLite executes that statement to its end
///   before anybody else can write.
/// - Where SQLite rolls back on its own (a full disk, an I/O error) the key's outcome is recorded as unknown, because what the
///   handler did after that was committed.
///
/// A handler must not write through the pool while it holds its `Tx`: it would wait for itself. A pool of one connection is enough.
///
/// Recommended for the pool: [`journal_mode(Wal)`](sqlx::sqlite::SqliteConnectOptions::journal_mode), so that others read
/// meanwhile, and the default `synchronous(Full)`: what a power loss takes back runs twice.
/// An in-memory database needs a pool of one connection that never ends: `max_connections(1)`, `idle_timeout(None)`,
/// `max_lifetime(None)`; it is lost with the connection when a handler is cut off or keeps its `Tx`.
///
/// ```
/// # async fn make(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
/// use tower_idempotency::sqlite::TransactionStore;
///
/// let store = TransactionStore::new(pool);
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TransactionStore {
    pool: SqlitePool,
    registry: Registry,
    /// Whose turn it is to write: a queue that holds no connections, and is fairer than polling the lock.
    turn: Arc<Semaphore>,
    /// A rolled back claim leaves no row, and the clock moves in whole milliseconds.
    last_fence: Arc<AtomicU64>,
}

impl TransactionStore {
    /// A store in the pool's database. The table must be there: see [`migrate`](Self::migrate).
    ///
    /// Make one, and clone it: clones know of each other's running keys, and answer duplicates of those at once.
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self {
            pool,
            registry: Registry::default(),
            turn: Arc::new(Semaphore::new(1)),
            last_fence: Arc::default(),
        }
    }

    /// Creates the store's table, `tower_idempotency_transactions`, if it isn't there, in one transaction.
    ///
    /// The same SQL is shipped as `src/store/sqlite/transaction.sql`. The journal mode is left alone, it concerns the whole database.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has made the table, or nothing.
    ///
    /// # Errors
    ///
    /// If the table was made by a later release, if SQLite is older than 3.37, or if the database fails.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        schema::migrate(&self.pool, &SCHEMA).await
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        let unavailable = |error: Box<dyn Error + Send + Sync>| {
            StoreError::new(StoreErrorKind::Unavailable, error)
        };
        let limit = self.pool.options().get_acquire_timeout();
        timeout(limit, Arc::clone(&self.turn).acquire_owned())
            .await
            .map_err(|elapsed| unavailable(elapsed.into()))?
            .map_err(|closed| unavailable(closed.into()))
    }

    /// A new transaction, which holds the lock of every key.
    async fn begin(&self, entry: Option<Entry>) -> Result<Guarded<Sqlite>, StoreError> {
        let turn = Some(self.turn().await?);
        let connection = self.pool.acquire().await.map_err(failed)?;
        let mut transaction = Guarded::new(connection, Kept { entry, turn });
        let begun = match transaction.connection() {
            Some(connection) => begin::<Sqlite>(connection, sql::BEGIN).await,
            None => Err(sqlx::Error::BeginFailed),
        };
        match begun {
            Ok(()) => Ok(transaction),
            Err(error) => {
                if is_busy(&error) {
                    transaction.pool();
                } else {
                    drop(transaction.close().await);
                }
                Err(failed(error))
            }
        }
    }

    async fn claim(
        &self,
        entry: Entry,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        let mut transaction = self.begin(Some(entry)).await?;
        let started = match transaction.connection() {
            Some(connection) => start(connection, key, fingerprint).await,
            None => Err(StoreErrorKind::Other.into()),
        };
        match started {
            Ok(Started::Free(found)) => {
                transaction.set_running(*fingerprint);
                let slot = Slot::new(transaction, terms.retention());
                let fence = self.next_fence(&found);
                let claim = Claim::new(*key, *fingerprint, terms.nonce(), 1, fence);
                Ok(Reservation::Acquired(claim.with_attachment(slot)))
            }
            Ok(Started::Answered(answer)) => {
                end(transaction).await;
                Ok(answer)
            }
            Err(error) => {
                end(transaction).await;
                Err(error)
            }
        }
    }

    fn next_fence(&self, found: &Found) -> u64 {
        let clock = u64::try_from(found.now).unwrap_or(0);
        let stored = found.stored.as_ref();
        let floor = stored.map_or(clock, |stored| clock.max(stored.fence.saturating_add(1)));
        let step = |last: u64| floor.max(last.saturating_add(1));
        let update = |last| Some(step(last));
        match self
            .last_fence
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, update)
        {
            Ok(last) | Err(last) => step(last),
        }
    }
}

#[async_trait]
impl Store for TransactionStore {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        loop {
            let busy = match self.registry.look(key) {
                Some(busy) => busy,
                None => {
                    let found = read(&self.pool, key).await?;
                    if let Some(answer) = answer(&found, fingerprint)? {
                        return Ok(answer);
                    }
                    match self.registry.enter(key) {
                        Ok(entry) => return self.claim(entry, key, fingerprint, terms).await,
                        Err(busy) => busy,
                    }
                }
            };
            match busy {
                Busy::Running(running) if running == *fingerprint => {
                    return Ok(Reservation::InFlight {
                        retry_after: ASK_AGAIN,
                    });
                }
                Busy::Running(running) => return Ok(Reservation::Mismatch(running)),
                Busy::Reserving(wait) => wait.ended().await,
            }
        }
    }

    /// The transaction lives as long as its connection, there is nothing to renew.
    async fn renew(&self, _claim: &Claim, _lease: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let Some(slot) = claim.attachments().get::<Slot<Sqlite>>() else {
            return self.verify_foreign(claim).await;
        };
        let mut end = slot.end().await;
        match *end {
            Some(End::Committed) => return Ok(()),
            Some(End::Misused) => return Err(StoreErrorKind::Misused.into()),
            Some(End::RolledBack | End::Unsure) => return self.verify(claim).await,
            // What holds if this call is dropped.
            None => *end = Some(End::Unsure),
        }
        let result = match slot.take_back() {
            Returned::Transaction {
                transaction,
                unused,
            } => {
                let committed = commit(transaction, claim, response, retention).await;
                if unused && committed.is_ok() {
                    report_unused(claim);
                }
                self.settled(claim, slot.retention(), committed).await
            }
            Returned::Out => Err(self.undo_when_back(claim, slot)),
            Returned::Gone => self.verify(claim).await,
        };
        *end = Some(match &result {
            Ok(()) => End::Committed,
            Err(error) => End::after(error),
        });
        result
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.undo(claim).await
    }

    async fn abandon(&self, claim: &Claim, _retention: Duration) -> Result<(), StoreError> {
        self.undo(claim).await
    }

    /// A run shows here once it is completed, until then nothing of it is in the database.
    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        read(&self.pool, key).await?.record()
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        // An absent record isn't worth a wait for the writer.
        if read(&self.pool, key).await?.stored.is_none() {
            return Ok(false);
        }
        let _turn = self.turn().await?;
        let unexpired: Vec<bool> = sqlx::query_scalar(sql::FORGET)
            .bind(&key.as_bytes()[..])
            // Not `fetch_optional`, which stops at the row and never hears whether it was committed.
            .fetch_all(&self.pool)
            .await
            .map_err(failed)?;
        Ok(unexpired.contains(&true))
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        let any: bool = sqlx::query_scalar(sql::ANY_EXPIRED)
            .fetch_one(&self.pool)
            .await
            .map_err(failed)?;
        if !any {
            return Ok(0);
        }
        upkeep::purge(&self.pool, sql::PURGE, limit, || self.turn()).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        upkeep::ping(&self.pool).await
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Transaction
    }
}

const SCHEMA: Schema = Schema {
    name: "transactions",
    script: include_str!("transaction.sql"),
};
