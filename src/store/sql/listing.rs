//! What the SQL stores share of a listing: what their two tables call things, and how rows become a page.

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{Columns, Found, from_micros, stored::corrupt};
use crate::{
    RecordKey, StoreError,
    store::{Counts, Cursor, Listed, Page},
};

/// How a table tells what the other one has a column for. `micros` is the clock.
pub(crate) struct Shape {
    attempt: &'static str,
    state: &'static str,
    lease_end: &'static str,
    in_flight: &'static str,
    completed: &'static str,
}

pub(crate) const LEASES: Shape = Shape {
    attempt: "attempt",
    state: "state",
    lease_end: "lease_end",
    in_flight: "(state = 0 AND lease_end > micros)",
    completed: "(state = 1)",
};

/// What has a row there is over. Without a response, it was the handler that ended it.
pub(crate) const TRANSACTIONS: Shape = Shape {
    attempt: "1",
    state: "2",
    lease_end: "expires",
    in_flight: "FALSE",
    completed: "(response IS NOT NULL)",
};

impl Shape {
    pub(crate) fn fill(&self, template: &str) -> String {
        template
            .replace("{attempt}", self.attempt)
            .replace("{state}", self.state)
            .replace("{lease_end}", self.lease_end)
            .replace("{in_flight}", self.in_flight)
            .replace("{completed}", self.completed)
    }
}

/// The fence and the key behind which a page begins.
pub(crate) fn start(after: Option<&Cursor>) -> Result<(i64, RecordKey), StoreError> {
    match after {
        None => Ok((-1, RecordKey::from_bytes([0; 32]))),
        Some(cursor) => {
            let (fence, key) = cursor.place()?;
            Ok((i64::try_from(fence).unwrap_or(i64::MAX), key))
        }
    }
}

/// A page of the rows that were found, which were `limit` at most.
pub(crate) fn page(
    rows: impl IntoIterator<Item = Result<(Columns, Vec<u8>), StoreError>>,
    limit: u32,
) -> Result<Page, StoreError> {
    let listed = rows.into_iter().map(|row| listed(row?));
    let records = listed.collect::<Result<Vec<_>, _>>()?;
    let is_full = records.len() as u64 >= u64::from(limit);
    let next = records.last().filter(|_| is_full).map(Cursor::behind);
    Ok(Page::new(records, next))
}

fn listed((columns, key): (Columns, Vec<u8>)) -> Result<Listed, StoreError> {
    let found = Found::read(columns)?;
    let record = found.record()?.ok_or_else(corrupt)?;
    let key = key.try_into().map_err(|_wrong_length| corrupt())?;
    let claimed = i64::try_from(record.fence).unwrap_or(i64::MAX);
    let age = from_micros(found.now.saturating_sub(claimed));
    Ok(Listed::new(RecordKey::from_bytes(key), age, record))
}

/// Of a row with the counts in their order, and the bytes.
pub(crate) fn counts<R: Row>(row: &R) -> Result<Counts, sqlx::Error>
where
    usize: ColumnIndex<R>,
    i64: for<'r> Decode<'r, R::Database> + Type<R::Database>,
{
    let count = |index: usize| -> Result<u64, sqlx::Error> {
        let count: i64 = row.try_get(index)?;
        Ok(u64::try_from(count).unwrap_or(0))
    };
    Ok(Counts {
        in_flight: count(0)?,
        unknown: count(1)?,
        completed: count(2)?,
        expired: count(3)?,
        response_bytes: Some(count(4)?),
    })
}

/// Implements the trait for stores that have a `listing()`.
macro_rules! list_records {
    ($($store:ident),*) => {$(
        #[async_trait::async_trait]
        impl $crate::store::ListRecords for $store {
            async fn list_unsettled(
                &self,
                older_than: Duration,
                limit: u32,
                after: Option<&Cursor>,
            ) -> Result<Page, StoreError> {
                self.listing().unsettled(older_than, limit, after).await
            }

            async fn count_records(&self) -> Result<Counts, StoreError> {
                self.listing().counts().await
            }
        }
    )*};
}

pub(crate) use list_records;
