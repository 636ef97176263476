//! What operators ask of all records. No index helps: it would cost every claim.

use std::time::Duration;

use sqlx::{AssertSqlSafe, FromRow, Row, SqlitePool, sqlite::SqliteRow};

use super::{LeaseStore, TransactionStore, clock::now, error::failed};
use crate::{
    StoreError,
    store::{
        Counts, Cursor, Page,
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
FROM (SELECT {now} AS micros) AS clock, {table}
WHERE NOT {completed} AND expires > micros AND fence <= micros - ?1 AND (fence, record_key) > (?2, ?3)
ORDER BY fence, record_key LIMIT ?4";

/// The length of a blob is told without reading it.
const COUNTS: &str = "
SELECT count(*) FILTER (WHERE expires > micros AND {in_flight}),
    count(*) FILTER (WHERE expires > micros AND NOT {in_flight} AND NOT {completed}),
    count(*) FILTER (WHERE expires > micros AND {completed}),
    count(*) FILTER (WHERE expires <= micros),
    coalesce(sum(length(response)), 0)
FROM (SELECT {now} AS micros) AS clock, {table}";

/// One of the two tables.
struct Listing<'a> {
    pool: &'a SqlitePool,
    table: &'static str,
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
        let rows = sqlx::query(self.statement(UNSETTLED))
            .bind(to_micros(older_than))
            .bind(fence)
            .bind(&key.as_bytes()[..])
            .bind(limit)
            .fetch_all(self.pool)
            .await
            .map_err(failed)?;
        let read = |row: &SqliteRow| {
            let columns = Columns::from_row(row).map_err(failed)?;
            Ok((columns, row.try_get(10).map_err(failed)?))
        };
        listing::page(rows.iter().map(read), limit)
    }

    async fn counts(self) -> Result<Counts, StoreError> {
        let row = sqlx::query(self.statement(COUNTS))
            .fetch_one(self.pool)
            .await
            .map_err(failed)?;
        listing::counts(&row).map_err(failed)
    }

    fn statement(&self, template: &str) -> AssertSqlSafe<String> {
        let filled = self.shape.fill(template).replace("{now}", now!());
        AssertSqlSafe(filled.replace("{table}", self.table))
    }
}

impl LeaseStore {
    fn listing(&self) -> Listing<'_> {
        Listing {
            pool: &self.pool,
            table: "tower_idempotency_leases",
            shape: LEASES,
        }
    }
}

impl TransactionStore {
    fn listing(&self) -> Listing<'_> {
        Listing {
            pool: self.pool(),
            table: "tower_idempotency_transactions",
            shape: TRANSACTIONS,
        }
    }
}

list_records!(LeaseStore, TransactionStore);
