use sqlx::Row;

use super::{
    database::Database,
    statement::{Argument, Statement},
};
use crate::{StoreError, store::postgres::error::failed};

/// One row: how many were deleted. Rows that another node is just purging, or that are being claimed, are left to those.
///
/// The clock is read before the rows: a value that changes from row to row finds nothing by an index. The rows are found again by their
/// places, for which there is one plan only, and while they are locked they stay there. Their expiry is looked at once more.
///
/// A fence that the clock hasn't passed yet stays: the key's next one goes on from it.
pub(super) const PURGE: &str = "
WITH deleted AS (
    DELETE FROM {table} WHERE expires < {now} AND fence < {now} AND ctid = ANY (ARRAY(
        SELECT ctid FROM {table} WHERE expires < (SELECT {now}) AND fence < (SELECT {now}) ORDER BY expires LIMIT $1::bigint FOR UPDATE SKIP LOCKED))
    RETURNING true
)
SELECT count(*), {own} AS is_own FROM deleted";

/// Deletes up to `limit` expired rows, in batches with a transaction each.
pub(super) async fn purge(
    database: &Database,
    statement: &Statement,
    limit: u32,
) -> Result<u64, StoreError> {
    let limit = i64::from(limit);
    let mut purged = 0;
    while purged < limit {
        let batch = BATCH.min(limit - purged);
        let rows = database.run(statement, &[Argument::from(batch)]).await?;
        let deleted: i64 = match rows.first() {
            Some(row) => row.try_get(0).map_err(failed)?,
            None => 0,
        };
        purged += deleted;
        if deleted < batch {
            break;
        }
    }
    Ok(u64::try_from(purged).unwrap_or(0))
}

/// Rows in one transaction: some milliseconds of work.
const BATCH: i64 = 1_000;
