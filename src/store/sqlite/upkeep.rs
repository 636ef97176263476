use sqlx::SqlitePool;

use super::error::failed;
use crate::StoreError;

/// Deletes up to `limit` rows by a statement that takes the number of rows.
///
/// In batches, so that other writers get their turn in between.
pub(super) async fn purge(
    pool: &SqlitePool,
    statement: &'static str,
    limit: u32,
) -> Result<u64, StoreError> {
    let mut purged = 0;
    while purged < u64::from(limit) {
        let batch = BATCH.min(u64::from(limit) - purged);
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
