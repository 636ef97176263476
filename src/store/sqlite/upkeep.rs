use sqlx::SqlitePool;

use super::error::failed;
use crate::StoreError;

/// Deletes up to `limit` rows by a statement that takes the number of rows.
///
/// In batches, each with a turn of its own, so that other writers get theirs in between.
pub(super) async fn purge<F, T>(
    pool: &SqlitePool,
    statement: &'static str,
    limit: u32,
    turn: impl Fn() -> F,
) -> Result<u64, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut purged = 0;
    while purged < u64::from(limit) {
        let batch = BATCH.min(u64::from(limit) - purged);
        let _turn = turn().await?;
        let deleted = sqlx::query(statement)
            .bind(i64::try_from(batch).unwrap_or(i64::MAX))
            .execute(pool)
            .await
            .map_err(failed)?
            .rows_affected();
        purged += deleted;
        if deleted < batch {
            break;
        }
    }
    Ok(purged)
}

/// Reads a page of the database: a file that was replaced or can't be read shows here.
pub(super) async fn ping(pool: &SqlitePool) -> Result<(), StoreError> {
    sqlx::query("SELECT count(*) FROM sqlite_master")
        .execute(pool)
        .await
        .map_err(failed)?;
    Ok(())
}

/// Rows in one transaction: some milliseconds of work.
const BATCH: u64 = 1_000;
