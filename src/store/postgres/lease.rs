use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::{PgPool, Row, postgres::PgRow};

use super::{
    database::Database,
    error::{failed, is_read_only},
    lease_sql::LeaseSql,
    schema::Schema,
    statement::{Argument, Statement, bytes},
    upkeep,
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError,
    store::{
        Claim, Note, Record, Reservation, Steps, Store, StoreKind, TableName, Terms,
        sql::{
            Columns, Found, Stored,
            leases::{self, LeaseDialect, Looked, RowNotes, Settled},
        },
    },
};

/// A lease store in a Postgres database: the claim is durable before the handler runs, the response is saved after it.
///
/// What the handler writes, through the same pool or elsewhere, is not part of it: after a crash in mid-run the outcome is unknown, and
/// the [takeover policy](crate::store::Takeover) decides. Use [`TransactionStore`](super::TransactionStore) where the handler's writes
/// go into the same database.
///
/// Most calls are one statement in a transaction of its own, and one round trip; to claim an expired key or to take one over are two. A
/// replay writes nothing and locks nothing. No connection is held between calls. What is undone in favour of another transaction
/// (a serialization failure, a deadlock) is tried again for about a second.
///
/// On the pool, poolers, privileges and growth: see the [module](crate::postgres).
///
/// ```no_run
/// # async fn make() -> Result<(), Box<dyn std::error::Error>> {
/// use sqlx::postgres::PgPoolOptions;
/// use tower_idempotency::postgres::LeaseStore;
///
/// let pool = PgPoolOptions::new().test_before_acquire(false).connect("postgres://localhost/shop").await?;
/// let store = LeaseStore::new(pool).with_table("payments.idempotency_keys".parse()?);
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LeaseStore {
    pub(super) database: Database,
    pub(super) table: TableName,
    sql: Arc<LeaseSql>,
}

impl LeaseStore {
    /// A store in the pool's database. The table must be there: see [`migrate`](Self::migrate).
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        let table = TableName::of(SCHEMA.default_table);
        Self {
            database: Database::new(pool),
            sql: Arc::new(LeaseSql::new(&table)),
            table,
        }
    }

    /// Keeps the records in this table instead of `tower_idempotency_leases`.
    #[must_use]
    pub fn with_table(mut self, table: TableName) -> Self {
        self.sql = Arc::new(LeaseSql::new(&table));
        self.table = table;
        self
    }

    /// Creates the store's table and its index if they aren't there, in one transaction, and [checks](Self::check) them.
    ///
    /// The same SQL is shipped as `src/store/postgres/lease.sql`. Several processes may call this at once.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has made the table, or nothing.
    ///
    /// # Errors
    ///
    /// What [`check`](Self::check) finds, or if the database fails. The user needs the privilege to create tables in the schema.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        SCHEMA.migrate(&self.database, &self.table).await
    }

    /// Looks whether the table is as this release needs it, for those who make it by a tool of their own.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    ///
    /// # Errors
    ///
    /// If the table is missing, of another version, or lacks something: the message tells what.
    pub async fn check(&self) -> Result<(), StoreError> {
        SCHEMA.check(&self.database, &self.table).await
    }

    async fn wrote(
        &self,
        statement: &Statement,
        arguments: &[Argument<'_>],
    ) -> Result<bool, StoreError> {
        let rows = self.database.run(statement, arguments).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound);
        row.and_then(|row| row.try_get(0)).map_err(failed)
    }
}

#[async_trait]
impl Store for LeaseStore {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        leases::reserve(self, key, fingerprint, terms).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        leases::renew(self, claim, lease).await
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        leases::settle(self, claim, Settled::Completed(response), retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        leases::release(self, claim).await
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        leases::settle(self, claim, Settled::Abandoned, retention).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.read(key).await?.record()
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        self.wrote(&self.sql.forget, &[key.into()]).await
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        upkeep::purge(&self.database, &self.sql.purge, limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.database.ping().await
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Lease
    }

    fn steps(&self) -> Option<&dyn Steps> {
        Some(self)
    }
}

#[async_trait]
impl Steps for LeaseStore {
    async fn notes(&self, claim: &Claim) -> Result<Vec<Note>, StoreError> {
        leases::notes(self, claim).await
    }

    async fn note(&self, claim: &Claim, note: &Note) -> Result<(), StoreError> {
        leases::note(self, claim, note).await
    }
}

impl LeaseDialect for LeaseStore {
    async fn claim_or_read(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Looked, StoreError> {
        let nonce = terms.nonce();
        let arguments = [
            key.into(),
            Argument::tag(fingerprint),
            Argument::digest(fingerprint),
            Argument::nonce(&nonce),
            terms.lease().into(),
            terms.retention().into(),
        ];
        let rows = self
            .database
            .try_run(&self.sql.claim_or_read, &arguments)
            .await;
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) if is_read_only(&error) => {
                // What is done can be answered all the same.
                let found = self.read(key).await?;
                let is_live = found.live().is_some();
                return is_live
                    .then_some(Looked::Found(found))
                    .ok_or_else(|| failed(error));
            }
            Err(error) => return Err(failed(error)),
        };
        let Some(row) = rows.first() else {
            return Ok(Looked::LookAgain);
        };
        let columns = columns(row).map_err(failed)?;
        // Of a new claim there is nothing but its fence.
        match columns {
            Columns {
                tag: None,
                fence: Some(fence),
                ..
            } => Ok(Looked::Claimed(Claim::new(
                *key,
                *fingerprint,
                nonce,
                1,
                u64::try_from(fence).unwrap_or(0),
            ))),
            columns => Found::read(columns).map(Looked::Found),
        }
    }

    async fn read(&self, key: &RecordKey) -> Result<Found, StoreError> {
        let rows = self.database.run(&self.sql.read, &[key.into()]).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound);
        Found::read(row.and_then(columns).map_err(failed)?)
    }

    async fn claim_over(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        over: Option<&Stored>,
        attempt: u32,
    ) -> Result<Option<Claim>, StoreError> {
        let nonce = terms.nonce();
        let arguments = [
            key.into(),
            Argument::tag(fingerprint),
            Argument::digest(fingerprint),
            Argument::nonce(&nonce),
            i64::from(attempt).into(),
            Argument::Bytes(over.map(|stored| &stored.nonce.as_bytes()[..])),
            Argument::Number(over.map(|stored| stored.state as i64)),
            terms.lease().into(),
            terms.retention().into(),
        ];
        let claimed = self.database.run(&self.sql.claim_over, &arguments).await?;
        let row = claimed.first().ok_or(sqlx::Error::RowNotFound);
        let fence: Option<i64> = row.and_then(|row| row.try_get(0)).map_err(failed)?;
        Ok(fence.map(|fence| {
            let fence = u64::try_from(fence).unwrap_or(0);
            Claim::new(*key, *fingerprint, nonce, attempt, fence)
        }))
    }

    async fn renew_row(&self, claim: &Claim, lease: Duration) -> Result<bool, StoreError> {
        let nonce = claim.nonce();
        let arguments = [claim.key().into(), Argument::nonce(&nonce), lease.into()];
        self.wrote(&self.sql.renew, &arguments).await
    }

    async fn settle_row(
        &self,
        claim: &Claim,
        settled: Settled<'_>,
        retention: Duration,
    ) -> Result<bool, StoreError> {
        let is_completed = matches!(settled, Settled::Completed(_));
        let (nonce, response) = (claim.nonce(), settled.encoded());
        let arguments = [
            claim.key().into(),
            Argument::tag(claim.fingerprint()),
            Argument::digest(claim.fingerprint()),
            Argument::nonce(&nonce),
            i64::from(claim.attempt()).into(),
            Argument::fence(claim),
            (settled.state() as i64).into(),
            retention.into(),
            Argument::Response(response.as_deref()),
            i64::from(is_completed).into(),
        ];
        self.wrote(&self.sql.settle, &arguments).await
    }

    async fn release_row(&self, claim: &Claim) -> Result<bool, StoreError> {
        let nonce = claim.nonce();
        let arguments = [claim.key().into(), Argument::nonce(&nonce)];
        self.wrote(&self.sql.release, &arguments).await
    }

    async fn note_row(&self, claim: &Claim, appended: &[u8]) -> Result<bool, StoreError> {
        let nonce = claim.nonce();
        let arguments = [
            claim.key().into(),
            Argument::nonce(&nonce),
            Argument::Response(Some(appended)),
        ];
        self.wrote(&self.sql.note, &arguments).await
    }

    async fn row_notes(&self, claim: &Claim) -> Result<Option<RowNotes>, StoreError> {
        let nonce = claim.nonce();
        let arguments = [claim.key().into(), Argument::nonce(&nonce)];
        let rows = self.database.run(&self.sql.notes, &arguments).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound);
        let notes = row.and_then(|row| {
            let is_there: bool = row.try_get(0)?;
            is_there.then(|| bytes(row, 1)).transpose()
        });
        notes.map_err(failed)
    }
}

/// A row of the table as it is read, behind the clock.
pub(super) fn columns(row: &PgRow) -> Result<Columns, sqlx::Error> {
    Ok(Columns {
        now: row.try_get(0)?,
        tag: row.try_get(1)?,
        fingerprint: bytes(row, 2)?,
        nonce: bytes(row, 3)?,
        attempt: row.try_get(4)?,
        fence: row.try_get(5)?,
        state: row.try_get(6)?,
        lease_end: row.try_get(7)?,
        expires: row.try_get(8)?,
        response: bytes(row, 9)?,
    })
}

const SCHEMA: Schema = Schema {
    kind: "leases",
    default_table: "tower_idempotency_leases",
    script: include_str!("lease.sql"),
    file: "src/store/postgres/lease.sql",
    columns: &[
        ("record_key", "bytea", true),
        ("fence", "bigint", true),
        ("lease_end", "bigint", true),
        ("expires", "bigint", true),
        ("fingerprint_tag", "integer", true),
        ("attempt", "integer", true),
        ("state", "smallint", true),
        ("fingerprint", "bytea", true),
        ("nonce", "bytea", true),
        ("response", "bytea", false),
        ("steps", "bytea", false),
    ],
};
