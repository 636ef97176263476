use std::time::Duration;

use sqlx::{Sqlite, SqliteConnection, SqliteExecutor};
use tokio::time::{Instant, sleep};

use super::{
    error::{is_busy, is_constraint, is_refused},
    transaction_sql as sql,
};
use crate::{
    SavedResponse, StoreError, StoreErrorKind,
    store::{
        Claim,
        sql::{self as shared, Guarded, Kept, depth, rollback, to_micros},
    },
};

/// Why a settlement did not do what it should.
pub(super) enum Failure {
    /// The savepoint is gone, so the transaction that we opened has ended, and who knows what was committed.
    /// The key is still kept, so that this can be recorded.
    EndedByHandler(Option<Kept>),
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Writes the record as the last statement of the transaction, and commits.
pub(super) async fn commit(
    mut transaction: Guarded<Sqlite>,
    claim: &Claim,
    response: &SavedResponse,
    retention: Duration,
) -> Result<(), Failure> {
    let Some(connection) = transaction.connection() else {
        return Err(StoreError::from(StoreErrorKind::RolledBack).into());
    };
    match write(connection, claim, response, retention).await {
        Ok(()) => {
            transaction.pool();
            Ok(())
        }
        Err(NotCommitted::Ended) => Err(Failure::EndedByHandler(transaction.close().await)),
        Err(NotCommitted::Nested) => {
            drop(transaction.close().await);
            Err(StoreError::new(StoreErrorKind::Misused, NESTED).into())
        }
        Err(NotCommitted::Lost) => {
            end(transaction).await;
            Err(StoreError::from(StoreErrorKind::LostClaim).into())
        }
        Err(NotCommitted::Failed(error)) => {
            end(transaction).await;
            Err(StoreError::new(StoreErrorKind::RolledBack, error).into())
        }
        Err(NotCommitted::Unsure(error)) => {
            drop(transaction.close().await);
            Err(StoreError::new(StoreErrorKind::OutcomeUnknown, error).into())
        }
    }
}

/// Rolls everything back, and says so if that wasn't possible any more.
pub(super) async fn roll_back(
    mut transaction: Guarded<Sqlite>,
    interrupted: bool,
) -> Result<(), Failure> {
    let Some(connection) = transaction.connection() else {
        return Ok(());
    };
    // "Released, but the effect happened" must not be: a handler may have committed, and failed after that.
    match sqlx::query(sql::ROLLBACK_TO_SAVEPOINT)
        .execute(connection)
        .await
    {
        Err(error) if is_refused(&error) => {
            return Err(Failure::EndedByHandler(transaction.close().await));
        }
        Ok(_) if !interrupted => end(transaction).await,
        Ok(_) | Err(_) => drop(transaction.close().await),
    }
    Ok(())
}

/// Rolls back what was only read, or what is known to be open. A connection that can't is closed.
pub(super) async fn end(mut transaction: Guarded<Sqlite>) {
    let rolled_back = match transaction.connection() {
        Some(connection) => {
            rollback::<Sqlite>(connection).await.is_ok() && depth::<Sqlite>(connection) == 0
        }
        None => return,
    };
    if rolled_back {
        transaction.pool();
    } else {
        drop(transaction.close().await);
    }
}

/// Writes the record of a claim, without a response if its outcome is unknown. False if another's is there.
pub(super) async fn save(
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

enum NotCommitted {
    /// The transaction was ended before.
    Ended,
    /// A nested transaction is still open.
    Nested,
    /// Another's record is there.
    Lost,
    /// Nothing was committed.
    Failed(sqlx::Error),
    /// COMMIT was sent, and failed in a way that doesn't tell.
    Unsure(sqlx::Error),
}

async fn write(
    connection: &mut SqliteConnection,
    claim: &Claim,
    response: &SavedResponse,
    retention: Duration,
) -> Result<(), NotCommitted> {
    sqlx::query(sql::RELEASE_SAVEPOINT)
        .execute(&mut *connection)
        .await
        .map_err(|error| match is_refused(&error) {
            true => NotCommitted::Ended,
            false => NotCommitted::Failed(error),
        })?;
    if depth::<Sqlite>(connection) != 1 {
        // The savepoint took it along, but sqlx would end that one where it should commit.
        return Err(NotCommitted::Nested);
    }
    let saved = save(&mut *connection, claim, Some(response), retention)
        .await
        .map_err(NotCommitted::Failed)?;
    if !saved {
        return Err(NotCommitted::Lost);
    }
    commit_patiently(connection).await
}

/// A COMMIT that meets a reader (without WAL) is refused as busy and leaves the transaction open: it is sent again.
async fn commit_patiently(connection: &mut SqliteConnection) -> Result<(), NotCommitted> {
    let deadline = Instant::now() + BUSY_LIMIT;
    loop {
        match shared::commit::<Sqlite>(connection).await {
            Ok(()) => return Ok(()),
            Err(error) if is_busy(&error) && Instant::now() < deadline => sleep(BUSY_PAUSE).await,
            Err(error) if is_busy(&error) || is_constraint(&error) => {
                return Err(NotCommitted::Failed(error));
            }
            Err(error) => return Err(NotCommitted::Unsure(error)),
        }
    }
}

/// As long as sqlx's default busy timeout, which each attempt may wait by itself.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(5);

const NESTED: &str = "the handler left a nested transaction open";
