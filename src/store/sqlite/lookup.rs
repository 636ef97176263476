use sqlx::{SqliteConnection, SqliteExecutor};

use super::{error::failed, transaction_sql as sql};
use crate::{
    Fingerprint, RecordKey, StoreError,
    store::{
        Reservation,
        sql::{Columns, Found, State},
    },
};

/// What a reservation finds once it holds the lock.
pub(super) enum Started {
    Free(Found),
    Answered(Reservation),
}

/// Looks again under the lock, and sets the savepoint if the key is free.
pub(super) async fn start(
    connection: &mut SqliteConnection,
    key: &RecordKey,
    fingerprint: &Fingerprint,
) -> Result<Started, StoreError> {
    let found = read(&mut *connection, key).await?;
    if let Some(answer) = answer(&found, fingerprint)? {
        return Ok(Started::Answered(answer));
    }
    sqlx::query(sql::SAVEPOINT)
        .execute(connection)
        .await
        .map_err(failed)?;
    Ok(Started::Free(found))
}

/// The record of a key, expired or not.
pub(super) async fn read(
    executor: impl SqliteExecutor<'_>,
    key: &RecordKey,
) -> Result<Found, StoreError> {
    let columns: Columns = sqlx::query_as(sql::READ)
        .bind(&key.as_bytes()[..])
        .fetch_one(executor)
        .await
        .map_err(failed)?;
    Found::read(columns)
}

/// What the record answers; none if the key is free.
pub(super) fn answer(
    found: &Found,
    fingerprint: &Fingerprint,
) -> Result<Option<Reservation>, StoreError> {
    let Some(live) = found.live() else {
        return Ok(None);
    };
    Ok(Some(if live.fingerprint != *fingerprint {
        Reservation::Mismatch(live.fingerprint)
    } else if live.state == State::Completed {
        Reservation::Replay(live.response()?)
    } else {
        Reservation::Unknown
    }))
}
