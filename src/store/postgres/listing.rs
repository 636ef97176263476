//! What operators ask of all records. No index helps: it would cost every claim.
//!
//! The clock is in a WITH of its own, or it would be read, and computed, for each row.

use std::time::Duration;

use sqlx::postgres::PgRow;

use super::{
    LeaseStore, TransactionStore,
    database::Database,
    error::failed,
    lease::columns,
    statement::{Argument, Statement, bytes},
};
use crate::{
    StoreError,
    store::{
        Counts, Cursor, Page, TableName,
        sql::listing::{self, LEASES, Shape, TRANSACTIONS, list_records},
    },
};

/// The columns of [`Columns`](crate::store::sql::Columns), and the key. The oldest come first.
const UNSETTLED: &str = "
WITH clock AS (SELECT {now} AS micros)
SELECT micros, fingerprint_tag::bigint, fingerprint, nonce, {attempt}::bigint, fence, {state}::bigint, {lease_end}, expires,
    NULL::bytea, record_key
FROM clock, {table}
WHERE NOT {completed} AND expires > micros AND fence <= micros - $1::bigint AND (fence, record_key) > ($2::bigint, $3::bytea)
ORDER BY fence, record_key LIMIT $4::bigint";

const COUNTS: &str = "
WITH clock AS (SELECT {now} AS micros)
SELECT count(*) FILTER (WHERE expires > micros AND {in_flight}),
    count(*) FILTER (WHERE expires > micros AND NOT {in_flight} AND NOT {completed}),
    count(*) FILTER (WHERE expires > micros AND {completed}),
    count(*) FILTER (WHERE expires <= micros),
    coalesce(sum(octet_length(response)), 0)::bigint
FROM clock, {table}";

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
        let arguments = [
            older_than.into(),
            fence.into(),
            (&key).into(),
            i64::from(limit).into(),
        ];
        let rows = self.rows(UNSETTLED, &arguments).await?;
        let read = |row: &PgRow| {
            let key = bytes(row, 10).map_err(failed)?;
            Ok((columns(row).map_err(failed)?, key.unwrap_or_default()))
        };
        listing::page(rows.iter().map(read), limit)
    }

    async fn counts(self) -> Result<Counts, StoreError> {
        let rows = self.rows(COUNTS, &[]).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound);
        row.and_then(listing::counts).map_err(failed)
    }

    async fn rows(
        &self,
        template: &str,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<PgRow>, StoreError> {
        let statement = Statement::new(&self.shape.fill(template), self.table);
        self.database.read_all(&statement, arguments).await
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
        let dialect = self.dialect();
        Listing {
            database: &dialect.database,
            table: &dialect.table,
            shape: TRANSACTIONS,
        }
    }
}

list_records!(LeaseStore, TransactionStore);
