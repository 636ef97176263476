//! What operators ask of all records. No index helps: it would cost every claim. That on `expires` must not be used, as most rows
//! are in it and would be looked up one by one.

use std::time::Duration;

use sqlx::{FromRow, Row, mysql::MySqlRow};

use super::{
    LeaseStore, TransactionStore,
    database::Database,
    error::failed,
    statement::{Statement, filled, literal},
};
use crate::{
    StoreError,
    store::{
        Counts, Cursor, Page, TableName,
        sql::{
            Columns,
            listing::{self, LEASES, Shape, TRANSACTIONS, list_records},
            to_micros,
        },
    },
};

/// The columns of [`Columns`], and the key. The oldest come first.
const UNSETTLED: &str = "
SELECT micros, fingerprint_tag, fingerprint, nonce, {attempt}, fence, {state}, {lease_end}, expires, NULL, record_key
FROM (SELECT {now} AS micros) AS clock JOIN {table}
WHERE NOT {completed} AND expires - micros > 0 AND fence <= micros - ? AND (fence, record_key) > (?, ?)
ORDER BY fence, record_key LIMIT ?";

const COUNTS: &str = "
SELECT COUNT(IF(expires > micros AND {in_flight}, 1, NULL)),
    COUNT(IF(expires > micros AND NOT {in_flight} AND NOT {completed}, 1, NULL)),
    COUNT(IF(expires > micros AND {completed}, 1, NULL)),
    COUNT(IF(expires <= micros, 1, NULL)),
    CAST(COALESCE(SUM(OCTET_LENGTH(response)), 0) AS SIGNED)
FROM (SELECT {now} AS micros) AS clock JOIN {table}";

/// One of the two tables.
struct Listing<'a> {
    database: &'a Database,
    table: &'a TableName,
    shape: Shape,
}

impl Listing<'_> {
    async fn unsettled(
        self,
        older_than: Duration,
        limit: u32,
        after: Option<&Cursor>,
    ) -> Result<Page, StoreError> {
        let (fence, key) = listing::start(after)?;
        let statement = self.statement(UNSETTLED);
        let unsettled = statement.between_commits(&[
            to_micros(older_than).to_string(),
            fence.to_string(),
            literal(key.as_bytes()),
            limit.to_string(),
        ]);
        let rows = self.database.fetch_script(&unsettled).await?;
        let read = |row: &MySqlRow| {
            let columns = Columns::from_row(row).map_err(failed)?;
            Ok((columns, row.try_get(10).map_err(failed)?))
        };
        listing::page(rows.iter().map(read), limit)
    }

    async fn counts(self) -> Result<Counts, StoreError> {
        let counts = self.statement(COUNTS).between_commits(&[]);
        let rows = self.database.fetch_script(&counts).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound);
        row.and_then(listing::counts).map_err(failed)
    }

    fn statement(&self, template: &str) -> Statement {
        Statement::new(filled(&self.shape.fill(template), self.table))
    }
}

impl LeaseStore {
    fn listing(&self) -> Listing<'_> {
        Listing {
            database: &self.database,
            table: &self.table,
            shape: LEASES,
        }
    }
}

impl TransactionStore {
    fn listing(&self) -> Listing<'_> {
        Listing {
            database: &self.dialect().database,
            table: &self.table,
            shape: TRANSACTIONS,
        }
    }
}

list_records!(LeaseStore, TransactionStore);
