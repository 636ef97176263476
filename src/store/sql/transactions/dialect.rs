use std::fmt;

use sqlx::Database;

use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError,
    store::{
        Claim, Reservation, Terms,
        sql::{Found, Guarded, Kept},
    },
};

/// What a database does in its own way for a transaction store.
pub(crate) trait TransactionDialect: Clone + fmt::Debug + Send + Sync + 'static {
    type Database: Database;

    /// Whether the record is read before a transaction is opened, for which others may have to wait.
    const READS_FIRST: bool = false;

    /// The record of a key, read without its lock.
    fn read(&self, key: &RecordKey) -> impl Future<Output = Result<Found, StoreError>> + Send;

    /// Opens a transaction that holds the key's lock, and the [`SAVEPOINT`], if no live record is there.
    fn open(
        &self,
        kept: Kept,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> impl Future<Output = Result<Opened<Self::Database>, StoreError>> + Send;

    /// Writes the record as the last statement of the transaction, and commits.
    fn commit(
        &self,
        connection: &mut <Self::Database as Database>::Connection,
        claim: &Claim,
        response: &SavedResponse,
        retention: std::time::Duration,
    ) -> impl Future<Output = Result<(), NotCommitted>> + Send;

    /// Undoes all that the handler wrote, by way of the savepoint: a transaction that has ended doesn't have it any more.
    fn undo(
        &self,
        connection: &mut <Self::Database as Database>::Connection,
        claim: &Claim,
    ) -> impl Future<Output = Result<(), NotCommitted>> + Send;

    /// The record, read while holding the key's lock: only then does its absence prove anything.
    fn read_locked(
        &self,
        key: &RecordKey,
    ) -> impl Future<Output = Result<Found, StoreError>> + Send;

    /// Records that the outcome of a claim is unknown, on the connection whose transaction the handler has ended. Whatever it has
    /// begun there since is rolled back.
    fn save_unknown_on(
        &self,
        connection: &mut <Self::Database as Database>::Connection,
        claim: &Claim,
        retention: std::time::Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The same on another connection.
    fn save_unknown(
        &self,
        claim: &Claim,
        retention: std::time::Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// What a reservation finds once it holds the key's lock.
pub(crate) enum Opened<DB: Database> {
    /// The key is free. What was found is the clock, and perhaps an expired record.
    Free(Guarded<DB>, Found),
    Answered(Reservation),
}

/// Why a transaction was not committed, or not undone.
#[allow(dead_code, reason = "no backend tells all of them")]
pub(crate) enum NotCommitted {
    /// It was ended before by the handler, and who knows what was committed.
    Ended,
    /// The handler left a nested transaction open, or a statement of it had failed and was ignored.
    Misused(&'static str),
    /// Another's record is there.
    Lost,
    /// The database rolled it back in favour of another one.
    Conflict(sqlx::Error),
    /// It was refused at its end, by a constraint, say, and rolled back.
    Refused(sqlx::Error),
    /// Nothing was committed, and the connection may be in any state.
    Failed(sqlx::Error),
    /// `COMMIT` was sent, and failed in a way that doesn't tell.
    Unsure(sqlx::Error),
}

/// Set before the handler runs: it is gone once that transaction has ended, however that happened.
#[cfg(any(test, feature = "postgres", feature = "mysql"))]
pub(crate) const SAVEPOINT: &str = "SAVEPOINT tower_idempotency";
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(crate) const RELEASE_SAVEPOINT: &str = "RELEASE SAVEPOINT tower_idempotency";
pub(crate) const ROLLBACK_TO_SAVEPOINT: &str = "ROLLBACK TO SAVEPOINT tower_idempotency";

/// The handler's mistakes, as [`NotCommitted::Misused`] tells them.
pub(crate) const NESTED: &str = "the handler left a nested transaction open";
