//! How a transaction ends on its connection, and what becomes of the connection.

use std::time::Duration;

use sqlx::Database;
#[cfg(feature = "postgres")]
use sqlx::Executor;
use tokio::time::timeout;

use super::{NotCommitted, TransactionDialect};
use crate::{
    SavedResponse, StoreError, StoreErrorKind,
    store::{
        Claim,
        sql::{Guarded, depth, rollback},
    },
};

/// Why a settlement did not do what it should.
pub(super) enum Failure<DB: Database> {
    /// The transaction that we opened had ended before, and who knows what was committed.
    /// Its connection and its key are still kept, so that this can be recorded.
    EndedByHandler(Guarded<DB>),
    Store(StoreError),
}

/// Commits, together with the record.
pub(super) async fn commit<D: TransactionDialect>(
    dialect: &D,
    mut transaction: Guarded<D::Database>,
    claim: &Claim,
    response: &SavedResponse,
    retention: Duration,
) -> Result<(), Failure<D::Database>> {
    let limit = transaction.answer_limit();
    let Some(connection) = transaction.connection() else {
        return Err(Failure::Store(StoreErrorKind::RolledBack.into()));
    };
    let committing = dialect.commit(connection, claim, response, retention);
    match timeout(limit, committing).await {
        Ok(Ok(())) => {
            transaction.pool();
            Ok(())
        }
        Ok(Err(reason)) => Err(not_committed(transaction, reason).await),
        Err(elapsed) => {
            drop(transaction.close().await);
            let unknown = StoreError::new(StoreErrorKind::OutcomeUnknown, elapsed);
            Err(Failure::Store(unknown))
        }
    }
}

/// Rolls everything back, and says so if that wasn't possible any more.
pub(super) async fn roll_back<D: TransactionDialect>(
    dialect: &D,
    mut transaction: Guarded<D::Database>,
    claim: &Claim,
    interrupted: bool,
) -> Result<(), Failure<D::Database>> {
    let limit = match interrupted {
        true => transaction.answer_limit().min(INTERRUPTED_LIMIT),
        false => transaction.answer_limit(),
    };
    let Some(connection) = transaction.connection() else {
        return Ok(());
    };
    // "Released, but the effect happened" must not be: a handler may have committed, and failed after that.
    match timeout(limit, dialect.undo(connection, claim)).await {
        Ok(Ok(())) if !interrupted => {
            end(transaction).await;
            Ok(())
        }
        Ok(Err(reason @ (NotCommitted::Ended | NotCommitted::Conflict(_)))) => {
            Err(not_committed(transaction, reason).await)
        }
        Ok(Ok(())) => {
            roll_back_and_close(transaction).await;
            Ok(())
        }
        // A closed connection is rolled back, too.
        Ok(Err(_)) | Err(_) => {
            drop(transaction.close().await);
            Ok(())
        }
    }
}

async fn not_committed<DB: Database>(
    transaction: Guarded<DB>,
    reason: NotCommitted,
) -> Failure<DB> {
    let rolled_back = match reason {
        NotCommitted::Ended => return Failure::EndedByHandler(transaction),
        NotCommitted::Misused(how) => {
            drop(transaction.close().await);
            StoreError::new(StoreErrorKind::Misused, how)
        }
        NotCommitted::Unsure(error) => {
            drop(transaction.close().await);
            StoreError::new(StoreErrorKind::OutcomeUnknown, error)
        }
        NotCommitted::Lost => {
            end(transaction).await;
            StoreErrorKind::LostClaim.into()
        }
        NotCommitted::Conflict(error) => {
            end(transaction).await;
            StoreError::new(StoreErrorKind::Conflict, error)
        }
        NotCommitted::Refused(error) => {
            end(transaction).await;
            StoreError::new(StoreErrorKind::RolledBack, error)
        }
        NotCommitted::Failed(error) => {
            // Whatever the handler left there, a COPY in its middle or locked tables, goes with the connection.
            roll_back_and_close(transaction).await;
            StoreError::new(StoreErrorKind::RolledBack, error)
        }
    };
    Failure::Store(rolled_back)
}

/// A server notices some time later that a connection was closed. It answers a rollback when the key is free.
async fn roll_back_and_close<DB: Database>(mut transaction: Guarded<DB>) {
    let limit = transaction.answer_limit();
    if let Some(connection) = transaction.connection() {
        drop(timeout(limit, rollback::<DB>(connection)).await);
    }
    drop(transaction.close().await);
}

/// Rolls back what was only read, or what is known to be open. A connection that can't is closed.
pub(crate) async fn end<DB: Database>(mut transaction: Guarded<DB>) {
    let limit = transaction.answer_limit();
    let Some(connection) = transaction.connection() else {
        return;
    };
    let rolled_back = timeout(limit, rollback::<DB>(connection)).await;
    if matches!(rolled_back, Ok(Ok(()))) && depth::<DB>(connection) == 0 {
        transaction.pool();
    } else {
        drop(transaction.close().await);
    }
}

/// The same, while sqlx doesn't count the transaction.
#[cfg(feature = "postgres")]
pub(crate) async fn end_uncounted<DB: Database>(mut transaction: Guarded<DB>)
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let limit = transaction.answer_limit();
    let Some(connection) = transaction.connection() else {
        return;
    };
    let rolled_back = timeout(limit, sqlx::raw_sql("ROLLBACK").execute(connection)).await;
    if matches!(rolled_back, Ok(Ok(_))) {
        transaction.pool();
    } else {
        drop(transaction.close().await);
    }
}

/// A connection that was left in mid-statement answers soon, or has that statement's work before it: then it is closed, which ends
/// the transaction as well.
const INTERRUPTED_LIMIT: Duration = Duration::from_secs(2);
