use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::MySqlPool;

use super::{dialect::Dialect, schema::TRANSACTIONS, statement::literal, upkeep::UpkeepSql};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError,
    store::{
        Claim, Record, Reservation, Store, StoreKind, TableName, Terms,
        sql::transactions::Transactions,
    },
};

/// A transaction store in the application's MySQL or MariaDB database: key, the handler's writes and the response commit in one
/// transaction.
///
/// The handler writes through [`Tx<MySql>`](crate::Tx). A response that is to be saved commits all of it; anything else, a crash
/// included, rolls all of it back, and a retry runs again. That holds for InnoDB tables: what is written to another engine's stays.
///
/// Keyed requests run side by side, each on a connection that it holds until it is settled. A handler must not write to the same
/// rows through the pool while it holds its `Tx`: it would wait for itself. A pool of one connection is enough.
///
/// - **Duplicates** of a running request get 409 at once: in the same process without a connection, in another one because nobody
///   waits for the key's row (on MySQL for a second, the least that it can be told).
/// - **Deadlocks** undo the whole transaction, and on MariaDB from 11.6.2 on so do writes over a row that another one has committed since
///   the handler first read (error 1020). It is then a conflict that may be retried, also where the handler ignored the error:
///   its session doesn't autocommit, so that what it wrote after that isn't persisted either. A `ROLLBACK` of the handler's own looks
///   the same. A lock wait that ends in vain undoes its statement only, unless `innodb_rollback_on_timeout` is set.
/// - **Statements that commit**, such as a `COMMIT` of the handler's own, `START TRANSACTION`, or anything that makes or alters a
///   table (but `CREATE TEMPORARY TABLE`), are found out when the handler has answered: 500, and the key's outcome is unknown. What
///   it wrote after the last of them isn't persisted.
/// - **The handler's session** has `autocommit = 0`, and a `wait_timeout` no longer than [`Terms::run_limit`] (the layer: run limit + collect limit + store-call limit): a process that was frozen
///   doesn't hold its key for longer, as the server ends its connection. Both are as they were when the connection goes back into the
///   pool, or it is closed. User variables named `@tower_idempotency_*` are the store's.
/// - **Isolation**: any default of the pool's sessions is good but READ UNCOMMITTED. Their time zone doesn't matter; they must
///   autocommit, as they do by default.
/// - **Round trips**: two more than the handler's statements between BEGIN and COMMIT would take; a replay takes two, and writes
///   nothing. [`test_before_acquire(false)`](sqlx::pool::PoolOptions::test_before_acquire) saves one more.
/// - **A proxy** between pool and server must keep each session on a connection of its own, as it holds settings.
/// - **Permissions**: SELECT, INSERT, UPDATE and DELETE on the table. Only [`migrate`](Self::migrate) needs CREATE, where no table is.
/// - **Growth**: a row per key until it is [purged](Store::purge_expired). With responses of 350 bytes a million keys took 860 MB:
///   random keys leave InnoDB's pages partly empty.
///
/// Needs MariaDB 10.5 or MySQL 8.0. Tested on MariaDB 10.11 and 11.8; no MySQL could be run.
///
/// ```
/// # async fn make(pool: sqlx::MySqlPool) -> Result<(), Box<dyn std::error::Error>> {
/// use tower_idempotency::mysql::TransactionStore;
///
/// let store = TransactionStore::new(pool);
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TransactionStore {
    transactions: Transactions<Dialect>,
    pub(super) table: TableName,
    upkeep: Arc<UpkeepSql>,
}

impl TransactionStore {
    /// A store in the database of the pool's sessions. The table must be there: see [`migrate`](Self::migrate).
    ///
    /// Make one, and clone it: clones know of each other's running keys, and answer duplicates of those at once.
    #[must_use]
    pub fn new(pool: MySqlPool) -> Self {
        let table = TableName::of(TRANSACTIONS.table);
        Self {
            transactions: Transactions::new(Dialect::new(pool, &table)),
            upkeep: Arc::new(UpkeepSql::new(&table)),
            table,
        }
    }

    /// Uses this table instead of `tower_idempotency_transactions`; its schema is what MySQL calls a database.
    #[must_use]
    pub fn with_table(mut self, table: TableName) -> Self {
        self.transactions.set_up_anew().set_table(&table);
        self.upkeep = Arc::new(UpkeepSql::new(&table));
        self.table = table;
        self
    }

    /// Creates the store's table if it isn't there, and [checks](Self::check) it. Several processes may do so at once.
    ///
    /// The same SQL is shipped as `src/store/mysql/transaction.sql`, for teams that migrate with a tool of their own.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has made the table, or nothing.
    ///
    /// # Errors
    ///
    /// If the table isn't what this release needs, if it may not be created, or if the database fails.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        TRANSACTIONS
            .migrate(&self.dialect().database, &self.table)
            .await
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
        TRANSACTIONS
            .check(&self.dialect().database, &self.table)
            .await
    }

    #[cfg(all(test, unix, feature = "conformance"))]
    pub(super) fn set_sql(&mut self, sql: super::transaction_sql::TransactionSql) {
        self.transactions.set_up_anew().sql = Arc::new(sql);
    }

    pub(super) fn dialect(&self) -> &Dialect {
        self.transactions.dialect()
    }
}

#[async_trait]
impl Store for TransactionStore {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        self.transactions.reserve(key, fingerprint, terms).await
    }

    /// The transaction lives as long as its connection, there is nothing to renew.
    async fn renew(&self, _claim: &Claim, _lease: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        self.transactions.complete(claim, response, retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.transactions.undo(claim).await
    }

    async fn abandon(&self, claim: &Claim, _retention: Duration) -> Result<(), StoreError> {
        self.transactions.undo(claim).await
    }

    /// A run of another store or process shows here once it is completed: until then nothing of it is in the database.
    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.transactions.inspect(key).await
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        // A key that just runs has no record yet, and its lock isn't waited for.
        if self.transactions.read(key).await?.live().is_none() {
            return Ok(false);
        }
        let Dialect { database, sql } = self.dialect();
        let forget = sql.forget.between_commits(&[literal(key.as_bytes())]);
        let forgotten = database.execute_script(&forget).await?;
        Ok(forgotten.rows_affected() > 0)
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        self.upkeep.purge(&self.dialect().database, limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.upkeep.ping(&self.dialect().database).await
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Transaction
    }
}
