use std::{future::ready, time::Duration};

use async_trait::async_trait;
use sqlx::SqlitePool;

use super::{
    busy::Busy,
    error::failed,
    lease_sql as sql,
    schema::{self, Schema},
    upkeep,
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError,
    store::{
        Claim, Note, Record, Reservation, Steps, Store, StoreKind, Terms,
        sql::{
            Columns, Found, Stored, corrupt, hex,
            leases::{self, LeaseDialect, Looked, RowNotes, Settled},
            to_micros,
        },
    },
};

/// A lease store in a SQLite database: the claim is durable before the handler runs, the response is saved after it.
///
/// What the handler writes elsewhere, or through the pool, is not part of it: after a crash in mid-run the outcome is unknown,
/// and the [takeover policy](crate::store::Takeover) decides. Use [`TransactionStore`](super::TransactionStore) where the
/// handler's writes go into the same database.
///
/// Every call is one or two short statements, each in a transaction of its own, so the pool's busy timeout (sqlx: 5 seconds)
/// decides how long one waits for another writer. Give it a file other than a transaction store's, whose writer lock lasts
/// as long as a handler runs and would outlast leases.
///
/// Recommended for the pool: [`journal_mode(Wal)`](sqlx::sqlite::SqliteConnectOptions::journal_mode), so that replays are read
/// while another connection writes, and the default `synchronous(Full)`: a claim that a power loss takes back runs twice.
/// An in-memory database needs a pool of one connection that never ends: `max_connections(1)`, `idle_timeout(None)`,
/// `max_lifetime(None)`.
///
/// ```
/// # async fn make() -> Result<(), Box<dyn std::error::Error>> {
/// use sqlx::{SqlitePool, sqlite::{SqliteConnectOptions, SqliteJournalMode}};
/// use tower_idempotency::sqlite::LeaseStore;
///
/// let options = SqliteConnectOptions::new()
///     .filename("idempotency.db")
///     .create_if_missing(true)
///     .journal_mode(SqliteJournalMode::Wal);
/// let store = LeaseStore::new(SqlitePool::connect_with(options).await?);
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LeaseStore {
    pub(super) pool: SqlitePool,
    busy: Busy,
}

impl LeaseStore {
    /// A store in the pool's database. The table must be there: see [`migrate`](Self::migrate).
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self {
            pool,
            busy: Busy::default(),
        }
    }

    /// Creates the store's table, `tower_idempotency_leases`, if it isn't there, in one transaction, and [checks](Self::check) it.
    ///
    /// The same SQL is shipped as `src/store/sqlite/lease.sql`. The journal mode is left alone, it concerns the whole database.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has made the table, or nothing.
    ///
    /// # Errors
    ///
    /// What [`check`](Self::check) finds, or if the database fails.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        schema::migrate(&self.pool, &SCHEMA).await
    }

    /// Fails unless the store's table is there and is what this release needs, its version, columns and indexes: for an application
    /// that migrates by other means, and wants to hear of it when it starts. More columns are fine, if they have defaults.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    ///
    /// # Errors
    ///
    /// If the table is missing, isn't what this release needs, with all that is wrong about it, or was made by a later release, if SQLite
    /// is older than 3.37, or if the database fails.
    pub async fn check(&self) -> Result<(), StoreError> {
        schema::check(&self.pool, &SCHEMA).await
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
        let _busy = self.busy.with(claim.nonce());
        leases::renew(self, claim, lease).await
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let _busy = self.busy.with(claim.nonce());
        leases::settle(self, claim, Settled::Completed(response), retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        leases::release(self, claim).await
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        let _busy = self.busy.with(claim.nonce());
        leases::settle(self, claim, Settled::Abandoned, retention).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.read(key).await?.record()
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        let forgotten = sqlx::query(sql::FORGET)
            .bind(&key.as_bytes()[..])
            .execute(&self.pool)
            .await
            .map_err(failed)?;
        Ok(forgotten.rows_affected() > 0)
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        // Nobody queues here, SQLite's own lock decides.
        let no_turn = || ready(Ok(()));
        upkeep::purge(&self.pool, sql::PURGE, limit, no_turn).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        upkeep::ping(&self.pool).await
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
        let _busy = self.busy.with(claim.nonce());
        leases::note(self, claim, note).await
    }
}

impl LeaseDialect for LeaseStore {
    async fn claim_or_read(
        &self,
        key: &RecordKey,
        _fingerprint: &Fingerprint,
        _terms: &Terms,
    ) -> Result<Looked, StoreError> {
        // Only a read: most calls that don't claim anything are replays, and those needn't wait for a writer.
        self.read(key).await.map(Looked::Found)
    }

    async fn read(&self, key: &RecordKey) -> Result<Found, StoreError> {
        let columns: Columns = sqlx::query_as(sql::READ)
            .bind(&key.as_bytes()[..])
            .fetch_one(&self.pool)
            .await
            .map_err(failed)?;
        Found::read(columns)
    }

    async fn claim_over(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        over: Option<&Stored>,
        attempt: u32,
    ) -> Result<Option<Claim>, StoreError> {
        let over_nonce = over.map(|stored| stored.nonce.as_bytes().to_vec());
        let over_state = over.map(|stored| stored.state as i64);
        let claimed: Vec<i64> = sqlx::query_scalar(sql::CLAIM)
            .bind(&key.as_bytes()[..])
            .bind(i64::from(fingerprint.tag().to_u16()))
            .bind(&fingerprint.digest()[..])
            .bind(&terms.nonce().as_bytes()[..])
            .bind(i64::from(attempt))
            .bind(over_nonce)
            .bind(over_state)
            .bind(to_micros(terms.lease()))
            .bind(to_micros(terms.retention()))
            // To the end of the statement, which is its commit: `fetch_optional` stops at the row, and drops that error.
            .fetch_all(&self.pool)
            .await
            .map_err(failed)?;
        Ok(claimed.first().map(|&fence| {
            let fence = u64::try_from(fence).unwrap_or(0);
            Claim::new(*key, *fingerprint, terms.nonce(), attempt, fence)
        }))
    }

    async fn renew_row(&self, claim: &Claim, lease: Duration) -> Result<bool, StoreError> {
        let renewed = sqlx::query(sql::RENEW)
            .bind(&claim.key().as_bytes()[..])
            .bind(&claim.nonce().as_bytes()[..])
            .bind(to_micros(lease))
            .execute(&self.pool)
            .await
            .map_err(failed)?;
        Ok(renewed.rows_affected() > 0)
    }

    async fn settle_row(
        &self,
        claim: &Claim,
        settled: Settled<'_>,
        retention: Duration,
    ) -> Result<bool, StoreError> {
        let is_completed = matches!(settled, Settled::Completed(_));
        let written = sqlx::query(sql::SETTLE)
            .bind(&claim.key().as_bytes()[..])
            .bind(i64::from(claim.fingerprint().tag().to_u16()))
            .bind(&claim.fingerprint().digest()[..])
            .bind(&claim.nonce().as_bytes()[..])
            .bind(i64::from(claim.attempt()))
            .bind(i64::try_from(claim.fence()).unwrap_or(i64::MAX))
            .bind(settled.state() as i64)
            .bind(to_micros(retention))
            .bind(settled.encoded())
            .bind(i64::from(is_completed))
            .execute(&self.pool)
            .await
            .map_err(failed)?;
        Ok(written.rows_affected() > 0)
    }

    async fn release_row(&self, claim: &Claim) -> Result<bool, StoreError> {
        let released = sqlx::query(sql::RELEASE)
            .bind(&claim.key().as_bytes()[..])
            .bind(&claim.nonce().as_bytes()[..])
            .execute(&self.pool)
            .await
            .map_err(failed)?;
        Ok(released.rows_affected() > 0)
    }

    async fn note_row(&self, claim: &Claim, appended: &[u8]) -> Result<bool, StoreError> {
        let noted = sqlx::query(sql::NOTE)
            .bind(&claim.key().as_bytes()[..])
            .bind(&claim.nonce().as_bytes()[..])
            .bind(appended)
            .execute(&self.pool)
            .await
            .map_err(failed)?;
        Ok(noted.rows_affected() > 0)
    }

    async fn row_notes(&self, claim: &Claim) -> Result<Option<RowNotes>, StoreError> {
        let notes: Option<Option<String>> = sqlx::query_scalar(sql::NOTES)
            .bind(&claim.key().as_bytes()[..])
            .bind(&claim.nonce().as_bytes()[..])
            .fetch_optional(&self.pool)
            .await
            .map_err(failed)?;
        let bytes = |digits: String| hex::decode(digits.as_bytes()).ok_or_else(corrupt);
        notes.map(|notes| notes.map(bytes).transpose()).transpose()
    }

    fn is_busy(&self, stored: &Stored) -> bool {
        self.busy.contains(stored.nonce)
    }
}

const SCHEMA: Schema = Schema {
    name: "leases",
    script: include_str!("lease.sql"),
    columns: &[
        ("record_key", "BLOB"),
        ("fingerprint_tag", "INTEGER"),
        ("fingerprint", "BLOB"),
        ("nonce", "BLOB"),
        ("attempt", "INTEGER"),
        ("fence", "INTEGER"),
        ("state", "INTEGER"),
        ("lease_end", "INTEGER"),
        ("expires", "INTEGER"),
        ("response", "BLOB"),
        ("steps", "TEXT"),
    ],
};
