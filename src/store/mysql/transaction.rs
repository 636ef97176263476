use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::MySqlPool;

use super::{dialect::Dialect, schema::TRANSACTIONS, upkeep::UpkeepSql};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError,
    store::{
        Claim, Record, Reservation, Store, StoreKind, TableName, Terms,
        sql::transactions::Transactions,
    },
};

/// A transaction store in the application's MySQL or MariaDB database: key, the handler's writes and the response commit in one
/// transaction.
#[derive(Clone, Debug)]
pub struct TransactionStore {
    transactions: Transactions<Dialect>,
    table: TableName,
    upkeep: Arc<UpkeepSql>,
}

impl TransactionStore {
    /// A store in the pool's database. The table must be there: see [`migrate`](Self::migrate).
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

    /// Uses this table instead of `tower_idempotency_transactions`.
    #[must_use]
    pub fn with_table(mut self, table: TableName) -> Self {
        self.transactions.dialect_mut().set_table(&table);
        self.upkeep = Arc::new(UpkeepSql::new(&table));
        self.table = table;
        self
    }

    /// Creates the store's table if it isn't there, and [checks](Self::check) it.
    ///
    /// # Errors
    ///
    /// If the table isn't what this release needs, or if the database fails.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        TRANSACTIONS
            .migrate(&self.dialect().database, &self.table)
            .await
    }

    /// Checks that the store's table is there and is what this release needs.
    ///
    /// # Errors
    ///
    /// If the table isn't what this release needs, or if the database fails.
    pub async fn check(&self) -> Result<(), StoreError> {
        TRANSACTIONS
            .check(&self.dialect().database, &self.table)
            .await
    }

    #[cfg(test)]
    pub(super) fn set_sql(&mut self, sql: super::transaction_sql::TransactionSql) {
        self.transactions.dialect_mut().sql = Arc::new(sql);
    }

    fn dialect(&self) -> &Dialect {
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

    /// A run shows here once it is completed, until then nothing of it is in the database.
    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.transactions.read(key).await?.record()
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        // A key that just runs has no record yet, and its lock isn't waited for.
        if self.transactions.read(key).await?.live().is_none() {
            return Ok(false);
        }
        let Dialect { database, sql } = self.dialect();
        let forgotten = database
            .execute(|| sql.forget.query().bind(&key.as_bytes()[..]))
            .await?;
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
