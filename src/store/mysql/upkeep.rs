use std::fmt::Write;

use sqlx::Row;

use super::{
    database::Database,
    error::failed,
    statement::{Statement, filled, literal},
};
use crate::{StoreError, store::TableName};

/// The keys of expired rows, read without a lock.
///
/// A fence that the clock hasn't passed yet stays: the key's next one goes on from it.
const EXPIRED: &str = "SELECT record_key FROM {table} WHERE expires < {now} AND fence < {now} ORDER BY expires LIMIT ?";

/// By their keys, so that no gap between keys is locked, whose row another may just insert. The expiry is looked at again in the row
/// that is locked. The hint is for a table so small that the server would rather read, and lock, all of it.
const DELETE: &str = "DELETE record FROM {table} AS record FORCE INDEX (PRIMARY) WHERE expires < {now} AND fence < {now} AND record_key IN (";

const PING: &str = "SELECT EXISTS (SELECT 1 FROM {table})";

/// What a purge and a health check send.
#[derive(Debug)]
pub(super) struct UpkeepSql {
    pub(super) expired: Statement,
    delete: String,
    ping: Statement,
}

impl UpkeepSql {
    pub(super) fn new(table: &TableName) -> Self {
        Self {
            expired: Statement::new(filled(EXPIRED, table)),
            delete: filled(&format!("COMMIT; {DELETE}"), table),
            ping: Statement::new(filled(PING, table)),
        }
    }

    /// Deletes up to `limit` expired rows, in batches with a transaction each.
    pub(super) async fn purge(&self, database: &Database, limit: u32) -> Result<u64, StoreError> {
        let limit = u64::from(limit);
        let mut purged = 0;
        while purged < limit {
            let batch = BATCH.min(limit - purged);
            let keys = self.expired_keys(database, batch).await?;
            let Some(delete) = self.delete(&keys) else {
                break;
            };
            let deleted = database.execute_script(&delete).await?.rows_affected();
            purged += deleted;
            // Others may purge the same rows; this one goes on as long as there are some for it.
            if deleted == 0 || (keys.len() as u64) < batch {
                break;
            }
        }
        Ok(purged)
    }

    async fn expired_keys(
        &self,
        database: &Database,
        batch: u64,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let expired = self.expired.between_commits(&[batch.to_string()]);
        let rows = database.fetch_script(&expired).await?;
        rows.iter()
            .map(|row| row.try_get(0).map_err(failed))
            .collect()
    }

    pub(super) fn delete(&self, keys: &[Vec<u8>]) -> Option<String> {
        let (first, others) = keys.split_first()?;
        let mut delete = format!("{}{}", self.delete, literal(first));
        for key in others {
            // Writing to a string can't fail.
            let _ = write!(delete, ", {}", literal(key));
        }
        delete.push_str("); COMMIT");
        Some(delete)
    }

    /// Reads the table: one that is missing or may not be read shows here.
    pub(super) async fn ping(&self, database: &Database) -> Result<(), StoreError> {
        let ping = self.ping.between_commits(&[]);
        database.fetch_script(&ping).await.map(drop)
    }
}

/// Rows in one transaction: some milliseconds of work. From 1000 on, MariaDB makes a join of the list, and locks the whole table.
const BATCH: u64 = 500;
