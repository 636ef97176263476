use std::{error::Error, sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::{Sqlite, SqliteConnection, SqliteExecutor, SqlitePool};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    commit::commit_patiently,
    error::{failed, is_busy, is_refused},
    schema::{self, Schema},
    transaction_sql as sql, upkeep,
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{
        Claim, Record, Reservation, Store, StoreKind, Terms,
        sql::{
            Columns, Found, Guarded, Kept, begin, depth, to_micros,
            transactions::{
                NESTED, NotCommitted, Opened, RELEASE_SAVEPOINT, ROLLBACK_TO_SAVEPOINT,
                TransactionDialect, Transactions, end,
            },
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
pub struct TransactionStore(Transactions<Dialect>);

impl TransactionStore {
    /// A store in the pool's database. The table must be there: see [`migrate`](Self::migrate).
    ///
    /// Make one, and clone it: clones know of each other's running keys, and answer duplicates of those at once.
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self(Transactions::new(Dialect {
            pool,
            turn: Arc::new(Semaphore::new(1)),
        }))
    }

    /// Creates the store's table, `tower_idempotency_transactions`, if it isn't there, in one transaction, and [checks](Self::check)
    /// it.
    ///
    /// The same SQL is shipped as `src/store/sqlite/transaction.sql`. The journal mode is left alone, it concerns the whole database.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has made the table, or nothing.
    ///
    /// # Errors
    ///
    /// What [`check`](Self::check) finds, or if the database fails.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        schema::migrate(self.pool(), &SCHEMA).await
    }

    /// Fails unless the store's table is there and is what this release needs, its version, columns and indexes: for an application
    /// that migrates by other means, and wants to hear of it when it starts. More columns are fine, if they have defaults.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    ///
    /// # Errors
    ///
    /// If the table is missing, isn't what this release needs, with all that is wrong about it, or was made by a later release, if SQLite
    /// is older than 3.37, or if the database fails.
    pub async fn check(&self) -> Result<(), StoreError> {
        schema::check(self.pool(), &SCHEMA).await
    }

    pub(super) fn pool(&self) -> &SqlitePool {
        &self.0.dialect().pool
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
        self.0.reserve(key, fingerprint, terms).await
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
        self.0.complete(claim, response, retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.0.undo(claim).await
    }

    async fn abandon(&self, claim: &Claim, _retention: Duration) -> Result<(), StoreError> {
        self.0.undo(claim).await
    }

    /// A run of another store or process shows here once it is completed: until then nothing of it is in the database.
    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.0.inspect(key).await
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        // An absent record isn't worth a wait for the writer.
        if self.0.read(key).await?.stored.is_none() {
            return Ok(false);
        }
        let _turn = self.0.dialect().turn().await?;
        let unexpired: Vec<bool> = sqlx::query_scalar(sql::FORGET)
            .bind(&key.as_bytes()[..])
            // Not `fetch_optional`, which stops at the row and never hears whether it was committed.
            .fetch_all(self.pool())
            .await
            .map_err(failed)?;
        Ok(unexpired.contains(&true))
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        let any: bool = sqlx::query_scalar(sql::ANY_EXPIRED)
            .fetch_one(self.pool())
            .await
            .map_err(failed)?;
        if !any {
            return Ok(0);
        }
        upkeep::purge(self.pool(), sql::PURGE, limit, || self.0.dialect().turn()).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        upkeep::ping(self.pool()).await
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Transaction
    }
}

/// One writer at a time: whoever may write holds the lock of every key.
#[derive(Clone, Debug)]
struct Dialect {
    pool: SqlitePool,
    /// Whose turn it is to write: a queue that holds no connections, and is fairer than polling the lock.
    turn: Arc<Semaphore>,
}

impl Dialect {
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

    /// A new transaction, which holds the lock of every key, with the savepoint.
    async fn begin(&self, mut kept: Kept) -> Result<Guarded<Sqlite>, StoreError> {
        kept.turn = Some(self.turn().await?);
        let connection = self.pool.acquire().await.map_err(failed)?;
        let mut transaction = Guarded::new(connection, kept);
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
}

impl TransactionDialect for Dialect {
    type Database = Sqlite;

    /// A replay needn't wait for the writer.
    const READS_FIRST: bool = true;

    async fn read(&self, key: &RecordKey) -> Result<Found, StoreError> {
        read(&self.pool, key).await
    }

    async fn open(
        &self,
        kept: Kept,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        _terms: &Terms,
    ) -> Result<Opened<Sqlite>, StoreError> {
        let mut transaction = self.begin(kept).await?;
        let started = match transaction.connection() {
            Some(connection) => start(connection, key, fingerprint).await,
            None => Err(StoreErrorKind::Other.into()),
        };
        match started {
            Ok(Started::Free(found)) => Ok(Opened::Free(transaction, found)),
            Ok(Started::Answered(answer)) => {
                end(transaction).await;
                Ok(Opened::Answered(answer))
            }
            Err(error) => {
                end(transaction).await;
                Err(error)
            }
        }
    }

    async fn commit(
        &self,
        connection: &mut SqliteConnection,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), NotCommitted> {
        sqlx::query(RELEASE_SAVEPOINT)
            .execute(&mut *connection)
            .await
            .map_err(no_savepoint)?;
        if depth::<Sqlite>(connection) != 1 {
            // The savepoint took it along, but sqlx would end that one where it should commit.
            return Err(NotCommitted::Misused(NESTED));
        }
        let saved = save(&mut *connection, claim, Some(response), retention)
            .await
            .map_err(NotCommitted::Refused)?;
        if !saved {
            return Err(NotCommitted::Lost);
        }
        commit_patiently(connection).await
    }

    async fn undo(
        &self,
        connection: &mut SqliteConnection,
        _claim: &Claim,
    ) -> Result<(), NotCommitted> {
        sqlx::query(ROLLBACK_TO_SAVEPOINT)
            .execute(connection)
            .await
            .map_err(no_savepoint)?;
        Ok(())
    }

    async fn read_locked(&self, key: &RecordKey) -> Result<Found, StoreError> {
        let mut transaction = self.begin(Kept::default()).await?;
        let found = match transaction.connection() {
            Some(connection) => read(connection, key).await,
            None => Err(StoreErrorKind::Other.into()),
        };
        end(transaction).await;
        found
    }

    async fn save_unknown_on(
        &self,
        connection: &mut SqliteConnection,
        claim: &Claim,
        retention: Duration,
    ) -> Result<(), StoreError> {
        // An error says that there is nothing to roll back.
        drop(sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await);
        let saved = save(connection, claim, None, retention).await;
        saved.map(drop).map_err(failed)
    }

    async fn save_unknown(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        let saved = save(&self.pool, claim, None, retention).await;
        saved.map(drop).map_err(failed)
    }
}

enum Started {
    Free(Found),
    Answered(Reservation),
}

/// Looks again under the lock.
async fn start(
    connection: &mut SqliteConnection,
    key: &RecordKey,
    fingerprint: &Fingerprint,
) -> Result<Started, StoreError> {
    let found = read(connection, key).await?;
    Ok(match found.answer(fingerprint)? {
        Some(answer) => Started::Answered(answer),
        None => Started::Free(found),
    })
}

/// The record of a key, expired or not.
async fn read(executor: impl SqliteExecutor<'_>, key: &RecordKey) -> Result<Found, StoreError> {
    let columns: Columns = sqlx::query_as(sql::READ)
        .bind(&key.as_bytes()[..])
        .fetch_one(executor)
        .await
        .map_err(failed)?;
    Found::read(columns)
}

/// Writes the record of a claim, without a response if its outcome is unknown. False if another's is there.
async fn save(
    executor: impl SqliteExecutor<'_>,
    claim: &Claim,
    response: Option<&SavedResponse>,
    retention: Duration,
) -> Result<bool, sqlx::Error> {
    let saved = sqlx::query(sql::SAVE)
        .bind(&claim.key().as_bytes()[..])
        .bind(i64::from(claim.fingerprint().tag().to_u16()))
        .bind(&claim.fingerprint().digest()[..])
        .bind(&claim.nonce().as_bytes()[..])
        .bind(i64::try_from(claim.fence()).unwrap_or(i64::MAX))
        .bind(to_micros(retention))
        .bind(response.map(|response| response.encode().to_vec()))
        .execute(executor)
        .await?;
    Ok(saved.rows_affected() > 0)
}

fn no_savepoint(error: sqlx::Error) -> NotCommitted {
    if is_refused(&error) {
        NotCommitted::Ended
    } else {
        NotCommitted::Refused(error)
    }
}

const SCHEMA: Schema = Schema {
    name: "transactions",
    script: include_str!("transaction.sql"),
    columns: &[
        ("record_key", "BLOB"),
        ("fingerprint_tag", "INTEGER"),
        ("fingerprint", "BLOB"),
        ("nonce", "BLOB"),
        ("fence", "INTEGER"),
        ("expires", "INTEGER"),
        ("response", "BLOB"),
    ],
};
