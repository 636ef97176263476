use std::time::Duration;

use tokio_postgres::Client;
use tower_idempotency::{
    RecordKey, StoreError, StoreErrorKind,
    store::{Claim, RecordState},
};

use crate::{
    connections::Connections,
    error::failed,
    record::{Found, read},
    transaction::SAVEPOINT,
};

/// Opens a transaction, and tells whether it got the key's lock. Nothing waits. What is recorded must be read by a *later*
/// statement: one that locks and reads would see what was there before it had the lock.
pub(crate) async fn try_lock(
    client: &Client,
    key: &RecordKey,
    idle_limit: Duration,
) -> Result<bool, StoreError> {
    // A process that is frozen doesn't hold its keys for ever.
    let limit = i32::try_from(idle_limit.as_millis()).unwrap_or(i32::MAX);
    let limit = format!("SET LOCAL idle_in_transaction_session_timeout = {limit}");
    begin(client, &format!("{limit}; {SAVEPOINT}")).await?;
    let lock = "SELECT pg_try_advisory_xact_lock($1)";
    let row = client.query_one(lock, &[&lock_of(key)]).await;
    row.and_then(|row| row.try_get(0)).map_err(failed)
}

/// What became of a claim whose transaction isn't at hand. It is read under the key's lock: before that is free, the
/// transaction may be about to commit, and that there is no record proves nothing.
pub(crate) async fn verify(connections: &Connections, claim: &Claim) -> Result<(), StoreError> {
    let found = read_locked(connections, claim.key()).await;
    let found = found.map_err(|e| StoreError::new(StoreErrorKind::OutcomeUnknown, e))?;
    let kind = match found.stored {
        Some((_, nonce)) if nonce != claim.nonce().as_bytes() => StoreErrorKind::LostClaim,
        Some((record, _)) if matches!(record.state, RecordState::Completed(_)) => return Ok(()),
        Some(_) => StoreErrorKind::Misused,
        None => StoreErrorKind::RolledBack,
    };
    Err(kind.into())
}

async fn read_locked(connections: &Connections, key: &RecordKey) -> Result<Found, StoreError> {
    let connection = connections.get().await?;
    begin(&connection, "SET LOCAL lock_timeout = '1s'").await?;
    let lock = "SELECT pg_advisory_xact_lock($1)";
    let locked = connection.execute(lock, &[&lock_of(key)]).await;
    locked.map_err(failed)?;
    let found = read(&connection, key).await?;
    connection.roll_back().await;
    Ok(found)
}

/// READ COMMITTED, whatever the default is: at a higher level all statements see what was there before the lock.
async fn begin(client: &Client, then: &str) -> Result<(), StoreError> {
    let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {then}");
    client.batch_execute(&begin).await.map_err(failed)
}

/// Keys are digests, of which no two begin alike.
fn lock_of(key: &RecordKey) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *key.as_bytes();
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}
