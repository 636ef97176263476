use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::{MySql, MySqlPool, Row as _, mysql::MySqlArguments, query::Query};
use tokio::time::Instant;

use super::{
    database::Database,
    error::{failed, is_duplicate},
    lease_sql::LeaseSql,
    schema::LEASES,
    statement::{Statement, found, literal},
    upkeep::UpkeepSql,
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError,
    store::{
        Claim, Note, Record, Reservation, Steps, Store, StoreKind, TableName, Terms,
        sql::{
            Found, State, Stored, from_micros,
            leases::{self, LeaseDialect, Looked, RowNotes, Settled},
            to_micros,
        },
    },
};

/// A lease store in a MySQL or MariaDB database: the claim is durable before the handler runs, the response is saved after it.
///
/// What the handler writes is not part of it, not even in the same database: after a crash in mid-run the outcome is unknown, and
/// the [takeover policy](crate::store::Takeover) decides. Use [`TransactionStore`](super::TransactionStore) where the handler's
/// writes go into the same database.
///
/// Every call is one or two short statements, each in a transaction of its own, also on a connection that other code has left inside of
/// one. A reservation is one round trip, whether it claims, replays or tells that the key is in flight (on MySQL, which has no
/// `RETURNING`, it takes two); so is a renewal or a settlement (on MySQL, which can't tell whether a transaction is open, a response or a
/// step takes a `COMMIT` behind it). A replay writes nothing. Deadlocks are retried.
///
/// - **Isolation**: any default of the pool's sessions is good but READ UNCOMMITTED. Their time zone doesn't matter.
/// - **Pool**: [`test_before_acquire(false)`](sqlx::pool::PoolOptions::test_before_acquire) saves a round trip per call. Without the
///   statement cache (`statement_cache_capacity(0)`) a settlement and a step take one more. Sessions needn't autocommit.
///   Whoever locks a row of the table by hand, or the whole table, is waited for as long as `innodb_lock_wait_timeout` says: 50
///   seconds by default, of which a server needs hardly one.
/// - **Durability**: a power loss or a failover that takes a claim back runs the request twice, so `innodb_flush_log_at_trx_commit`
///   must be 1, its default, and a replica that takes over must have all that was committed.
/// - **Permissions**: SELECT, INSERT, UPDATE and DELETE on the table. Only [`migrate`](Self::migrate) needs CREATE, where no table is.
/// - **Growth**: a row per key until it is [purged](Store::purge_expired). With responses of 350 bytes a million keys took 880 MB:
///   random keys leave InnoDB's pages partly empty.
///
/// Needs MariaDB 10.5 or MySQL 8.0. Tested on MariaDB 10.11 and 11.8; no MySQL could be run.
///
/// ```
/// # async fn make() -> Result<(), Box<dyn std::error::Error>> {
/// use sqlx::mysql::MySqlPoolOptions;
/// use tower_idempotency::mysql::LeaseStore;
///
/// let pool = MySqlPoolOptions::new()
///     .test_before_acquire(false)
///     .connect("mysql://app@localhost/shop")
///     .await?;
/// let store = LeaseStore::new(pool);
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LeaseStore {
    pub(super) database: Database,
    pub(super) table: TableName,
    sql: Arc<LeaseSql>,
    upkeep: Arc<UpkeepSql>,
}

impl LeaseStore {
    /// A store in the database of the pool's sessions. The table must be there: see [`migrate`](Self::migrate).
    #[must_use]
    pub fn new(pool: MySqlPool) -> Self {
        let table = TableName::of(LEASES.table);
        Self {
            database: Database::new(pool),
            sql: Arc::new(LeaseSql::new(&table)),
            upkeep: Arc::new(UpkeepSql::new(&table)),
            table,
        }
    }

    /// Uses this table instead of `tower_idempotency_leases`; its schema is what MySQL calls a database.
    #[must_use]
    pub fn with_table(mut self, table: TableName) -> Self {
        self.sql = Arc::new(LeaseSql::new(&table));
        self.upkeep = Arc::new(UpkeepSql::new(&table));
        self.table = table;
        self
    }

    /// Creates the store's table if it isn't there, and [checks](Self::check) it. Several processes may do so at once.
    ///
    /// The same SQL is shipped as `src/store/mysql/lease.sql`, for teams that migrate with a tool of their own.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has made the table, or nothing.
    ///
    /// # Errors
    ///
    /// If the table isn't what this release needs, if it may not be created, or if the database fails.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        LEASES.migrate(&self.database, &self.table).await
    }

    /// Checks that the store's table is there and is what this release needs: its version, columns, keys and engine.
    ///
    /// More columns, if they have defaults, and more indexes that aren't unique are fine.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    ///
    /// # Errors
    ///
    /// If the table isn't what this release needs, with all that is wrong about it, or if the database fails.
    pub async fn check(&self) -> Result<(), StoreError> {
        LEASES.check(&self.database, &self.table).await
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
        self.committed(&self.sql.forget, &[literal(key.as_bytes())])
            .await
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        self.upkeep.purge(&self.database, limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.upkeep.ping(&self.database).await
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

impl LeaseStore {
    #[cfg(all(test, unix, feature = "conformance"))]
    pub(super) fn set_sql(&mut self, sql: LeaseSql) {
        self.sql = Arc::new(sql);
    }

    /// Runs a statement, and tells whether there was a row for it.
    async fn committed(
        &self,
        statement: &Statement,
        arguments: &[String],
    ) -> Result<bool, StoreError> {
        let text = statement.between_commits(arguments);
        Ok(self.database.execute_script(&text).await?.rows_affected() > 0)
    }

    /// The same, with what no text may hold.
    async fn write<'q>(
        &self,
        query: impl Fn() -> Query<'q, MySql, MySqlArguments>,
    ) -> Result<bool, StoreError> {
        let written = self.database.write(query).await.map_err(failed)?;
        Ok(written.rows_affected() > 0)
    }
}

impl LeaseDialect for LeaseStore {
    async fn claim_or_read(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Looked, StoreError> {
        let began = Instant::now();
        let claim = self.sql.claim.between_commits(&[
            literal(key.as_bytes()),
            fingerprint.tag().to_u16().to_string(),
            literal(fingerprint.digest()),
            literal(terms.nonce().as_bytes()),
            to_micros(terms.lease()).to_string(),
            to_micros(terms.lease().saturating_add(terms.retention())).to_string(),
        ]);
        let rows = self.database.fetch_script(&claim).await?;
        let found = match rows.first() {
            Some(row) => found(Some(row))?,
            None => self.read(key).await?,
        };
        Ok(match &found.stored {
            None => Looked::LookAgain,
            Some(stored) if is_new(stored, &found, terms, began) => {
                Looked::Claimed(stored.claim(key))
            }
            Some(_) => Looked::Found(found),
        })
    }

    async fn read(&self, key: &RecordKey) -> Result<Found, StoreError> {
        let read = self.sql.read.between_commits(&[literal(key.as_bytes())]);
        let rows = self.database.fetch_script(&read).await?;
        found(rows.first())
    }

    async fn claim_over(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        over: Option<&Stored>,
        attempt: u32,
    ) -> Result<Option<Claim>, StoreError> {
        // A key without a row is claimed by `claim_or_read`.
        let Some(over) = over else {
            return Ok(None);
        };
        let claim = self.sql.claim_over.between_commits(&[
            attempt.to_string(),
            fingerprint.tag().to_u16().to_string(),
            literal(fingerprint.digest()),
            literal(terms.nonce().as_bytes()),
            attempt.to_string(),
            to_micros(terms.lease()).to_string(),
            to_micros(terms.lease().saturating_add(terms.retention())).to_string(),
            literal(key.as_bytes()),
            literal(over.nonce.as_bytes()),
            (over.state as i64).to_string(),
        ]);
        let claimed = self.database.fetch_script(&claim).await?;
        let Some(row) = claimed.first() else {
            return Ok(None);
        };
        let fence = row.try_get(0).map_err(failed)?;
        let nonce = terms.nonce();
        Ok(Some(Claim::new(*key, *fingerprint, nonce, attempt, fence)))
    }

    async fn renew_row(&self, claim: &Claim, lease: Duration) -> Result<bool, StoreError> {
        let ([key, nonce], lease) = (of_claim(claim), to_micros(lease).to_string());
        let arguments = [lease.clone(), lease, key, nonce];
        self.committed(&self.sql.renew, &arguments).await
    }

    async fn settle_row(
        &self,
        claim: &Claim,
        settled: Settled<'_>,
        retention: Duration,
    ) -> Result<bool, StoreError> {
        let row = Row {
            claim,
            settled,
            retention: to_micros(retention),
            response: settled.encoded(),
        };
        let nonce = || claim.nonce().as_bytes().to_vec();
        let settle = || {
            let is_abandoned = matches!(settled, Settled::Abandoned);
            let query = self.sql.settle.query().bind(is_abandoned).bind(nonce());
            row.bind(query).bind(nonce())
        };
        if self.write(settle).await? {
            return Ok(true);
        }
        let insert = || row.bind(self.sql.settle_lost.query());
        match self.database.write(insert).await {
            Ok(_) => Ok(true),
            Err(error) if is_duplicate(&error) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    async fn release_row(&self, claim: &Claim) -> Result<bool, StoreError> {
        self.committed(&self.sql.release, &of_claim(claim)).await
    }

    async fn note_row(&self, claim: &Claim, appended: &[u8]) -> Result<bool, StoreError> {
        let length = appended.len() as u64;
        let note = || {
            let query = self.sql.note.query().bind(appended.to_vec());
            let query = query.bind(&claim.key().as_bytes()[..]);
            query.bind(claim.nonce().as_bytes().to_vec()).bind(length)
        };
        self.write(note).await
    }

    async fn row_notes(&self, claim: &Claim) -> Result<Option<RowNotes>, StoreError> {
        let notes = self.sql.notes.between_commits(&of_claim(claim));
        let rows = self.database.fetch_script(&notes).await?;
        let row = rows.first().map(|row| row.try_get(0));
        row.transpose().map_err(failed)
    }
}

/// The key and the nonce of a claim's row.
fn of_claim(claim: &Claim) -> [String; 2] {
    let (key, nonce) = (claim.key(), claim.nonce());
    [literal(key.as_bytes()), literal(nonce.as_bytes())]
}

/// Whether the row is the claim that this call has written. If an earlier one with the same nonce did, the lease began before.
fn is_new(stored: &Stored, found: &Found, terms: &Terms, began: Instant) -> bool {
    let since = stored.lease_end.saturating_sub(to_micros(terms.lease()));
    stored.nonce == terms.nonce()
        && stored.state == State::Running
        && from_micros(found.now.saturating_sub(since)) <= began.elapsed()
}

/// What a settled claim leaves.
struct Row<'a> {
    claim: &'a Claim,
    settled: Settled<'a>,
    retention: i64,
    response: Option<Vec<u8>>,
}

impl Row<'_> {
    fn bind<'q>(
        &'q self,
        query: Query<'q, MySql, MySqlArguments>,
    ) -> Query<'q, MySql, MySqlArguments> {
        let lease_left = match self.settled {
            Settled::Completed(_) => self.retention,
            Settled::Abandoned => 0,
        };
        query
            .bind(i64::from(self.claim.fingerprint().tag().to_u16()))
            .bind(&self.claim.fingerprint().digest()[..])
            .bind(self.claim.nonce().as_bytes().to_vec())
            .bind(i64::from(self.claim.attempt()))
            .bind(i64::try_from(self.claim.fence()).unwrap_or(i64::MAX))
            .bind(self.settled.state() as i64)
            .bind(lease_left)
            .bind(self.retention)
            .bind(self.response.as_deref())
            .bind(&self.claim.key().as_bytes()[..])
    }
}
