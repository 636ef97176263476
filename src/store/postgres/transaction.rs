use std::time::Duration;

use async_trait::async_trait;
use sqlx::{PgPool, Row};

use super::{dialect::Dialect, error::failed, schema::Schema, upkeep};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError,
    store::{
        Claim, Record, Reservation, Store, StoreKind, TableName, Terms,
        sql::transactions::Transactions,
    },
};

/// A transaction store in the application's Postgres database: key, the handler's writes and the response commit in one transaction.
///
/// The handler writes through [`Tx<Postgres>`](crate::Tx). A response that is to be saved commits all of it; anything else, a crash
/// included, rolls all of it back, and a retry runs again.
///
/// A keyed request holds a connection from before its handler runs until it is settled, so the pool's size is how many of them run at
/// once; others wait for a connection. One is enough, as long as handlers don't use the pool while they have their `Tx`.
///
/// - The key is an advisory lock of the transaction, which nobody waits for: a duplicate in another process is in flight at once, also
///   if it is another request; one in this process needs no connection.
/// - A statement that fails ends what the transaction can do: a handler that answers as if nothing were wrong gets a 500, and nothing is
///   saved. A nested transaction or a savepoint around the statement lets it go on.
/// - Under `REPEATABLE READ` and `SERIALIZABLE` a conflict with another transaction may only show at the end: 503 `not_committed`, and a
///   retry runs. The store's own reads are in no conflict with anybody.
/// - While the claim is open, the session's `idle_in_transaction_session_timeout` is no longer than [`Terms::run_limit`] (the layer:
///   run limit + collect limit + store-call limit): a process that is
///   frozen, or cut off, doesn't keep the key. A statement that the server is just executing goes on to its end, and keeps the key; a
///   `statement_timeout` limits that.
/// - What commits needs an answer: where it is lost, the record tells, or that there is none under the key's lock.
///
/// It makes two round trips more than `BEGIN` and `COMMIT` alone, and two for a replay.
///
/// On the pool, poolers, privileges and growth: see the [module](crate::postgres).
///
/// ```no_run
/// # async fn make(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use tower_idempotency::postgres::TransactionStore;
///
/// let store = TransactionStore::new(pool);
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TransactionStore(Transactions<Dialect>);

impl TransactionStore {
    /// A store in the pool's database. The table must be there: see [`migrate`](Self::migrate).
    ///
    /// Make one, and clone it: clones know of each other's running keys, and answer duplicates of those without a connection.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        let table = TableName::of(SCHEMA.default_table);
        Self(Transactions::new(Dialect::new(pool, table)))
    }

    /// Keeps the records in this table instead of `tower_idempotency_transactions`.
    #[must_use]
    pub fn with_table(mut self, table: TableName) -> Self {
        self.0.set_up_anew().set_table(table);
        self
    }

    /// Creates the store's table and its index if they aren't there, in one transaction, and [checks](Self::check) them.
    ///
    /// The same SQL is shipped as `src/store/postgres/transaction.sql`. Several processes may call this at once.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has made the table, or nothing.
    ///
    /// # Errors
    ///
    /// What [`check`](Self::check) finds, or if the database fails. The user needs the privilege to create tables in the schema.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let dialect = self.dialect();
        SCHEMA.migrate(&dialect.database, &dialect.table).await
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
        let dialect = self.dialect();
        SCHEMA.check(&dialect.database, &dialect.table).await
    }

    pub(super) fn dialect(&self) -> &Dialect {
        self.0.dialect()
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
        self.0.reserve(key, fingerprint, terms).await
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
        self.0.complete(claim, response, retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.0.undo(claim).await
    }

    async fn abandon(&self, claim: &Claim, _retention: Duration) -> Result<(), StoreError> {
        self.0.undo(claim).await
    }

    /// A run of another store or process shows here once it is completed: until then nothing of it is in the database.
    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.0.inspect(key).await
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        let dialect = self.dialect();
        let rows = dialect
            .database
            .run(&dialect.sql.forget, &[key.into()])
            .await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound);
        row.and_then(|row| row.try_get(0)).map_err(failed)
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        let dialect = self.dialect();
        upkeep::purge(&dialect.database, &dialect.sql.purge, limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.dialect().database.ping().await
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Transaction
    }
}

const SCHEMA: Schema = Schema {
    kind: "transactions",
    default_table: "tower_idempotency_transactions",
    script: include_str!("transaction.sql"),
    file: "src/store/postgres/transaction.sql",
    columns: &[
        ("record_key", "bytea", true),
        ("fence", "bigint", true),
        ("expires", "bigint", true),
        ("fingerprint_tag", "integer", true),
        ("fingerprint", "bytea", true),
        ("nonce", "bytea", true),
        ("response", "bytea", false),
    ],
};
