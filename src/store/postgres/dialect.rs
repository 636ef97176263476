use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row};

use super::{
    database::{Database, script},
    error::{failed, is_aborted, is_answer, is_conflict, is_constraint, is_no_savepoint},
    opening::{Lock, Opening, found},
    statement::Argument,
    transaction_sql::{ROLLBACK, TransactionSql, is_ours, limit_idleness, looking},
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{
        Claim, Reservation, TableName, Terms,
        sql::{
            ASK_AGAIN, Found, Guarded, Kept, begin, bounded, commit, depth, rollback,
            transactions::{
                NESTED, NotCommitted, Opened, ROLLBACK_TO_SAVEPOINT, SAVEPOINT, TransactionDialect,
                end, end_uncounted,
            },
        },
    },
};

/// A transaction store on Postgres: each key has an advisory lock, which its transaction holds.
#[derive(Clone, Debug)]
pub(super) struct Dialect {
    pub(super) database: Database,
    pub(super) table: TableName,
    pub(super) sql: Arc<TransactionSql>,
    /// Whether a transaction of this pool was seen that isn't READ COMMITTED.
    is_isolated: Arc<AtomicBool>,
}

impl Dialect {
    pub(super) fn new(pool: PgPool, table: TableName) -> Self {
        Self {
            database: Database::new(pool),
            sql: Arc::new(TransactionSql::new(&table)),
            table,
            is_isolated: Arc::default(),
        }
    }

    pub(super) fn set_table(&mut self, table: TableName) {
        self.sql = Arc::new(TransactionSql::new(&table));
        self.table = table;
    }

    /// Begins the handler's transaction, and looks at the record under the key's lock.
    async fn start(
        &self,
        connection: &mut PgConnection,
        key: &RecordKey,
        terms: &Terms,
    ) -> Result<Opening, StoreError> {
        if !self.is_isolated.load(Ordering::Relaxed) {
            let enter = AssertSqlSafe(self.sql.enter(key, terms));
            bounded(begin::<Postgres>(connection, enter))
                .await
                .map_err(failed)?;
            let arguments = looking(key, terms);
            let look = self.database.run_on(connection, &self.sql.look, &arguments);
            let rows = bounded(look).await.map_err(failed)?;
            let opening = Opening::of(&rows, terms)?;
            if opening.is_read_committed {
                return Ok(opening);
            }
            bounded(rollback::<Postgres>(connection))
                .await
                .map_err(failed)?;
            self.is_isolated.store(true, Ordering::Relaxed);
        }
        loop {
            let rows = script(connection, self.sql.look_and_enter(key, terms)).await?;
            let opening = Opening::of_two(&rows, terms)?;
            if opening.lock != Lock::TooLate || opening.found.live().is_some() {
                return Ok(opening);
            }
            // The other one may have found it taken by this, and given up: then nobody would get the key.
            script(connection, ROLLBACK.to_owned()).await?;
        }
    }

    /// Answers, or gets the transaction ready for the handler.
    async fn go_on(
        &self,
        connection: &mut PgConnection,
        opening: Opening,
        fingerprint: &Fingerprint,
    ) -> Result<Started, StoreError> {
        // A record that is there is committed, whoever has the lock: another that only reads it, say.
        if let Some(answer) = opening.found.answer(fingerprint)? {
            return Ok(Started::Answered(answer));
        }
        if opening.lock != Lock::Held {
            return Ok(Started::Answered(Reservation::InFlight {
                retry_after: ASK_AGAIN,
            }));
        }
        if opening.is_read_only {
            return Err(StoreError::new(
                StoreErrorKind::Other,
                "the database only reads: a standby, or `default_transaction_read_only`",
            ));
        }
        if depth::<Postgres>(connection) == 0 {
            // From here on sqlx counts the transaction, which the handler's nested ones need.
            bounded(begin::<Postgres>(connection, SAVEPOINT))
                .await
                .map_err(failed)?;
        }
        if let Some(own_limit) = opening.own_limit {
            script(connection, limit_idleness(own_limit)).await?;
        }
        Ok(Started::Free(opening.found))
    }
}

/// Rolls back what wasn't handed to the handler, whether sqlx counts it or not.
async fn leave(mut transaction: Guarded<Postgres>) {
    match transaction.connection() {
        Some(connection) if depth::<Postgres>(connection) == 0 => end_uncounted(transaction).await,
        Some(_) | None => end(transaction).await,
    }
}

impl TransactionDialect for Dialect {
    type Database = Postgres;

    async fn read(&self, key: &RecordKey) -> Result<Found, StoreError> {
        let rows = self.database.run(&self.sql.read, &[key.into()]).await?;
        found(rows.first())
    }

    async fn open(
        &self,
        kept: Kept,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Opened<Postgres>, StoreError> {
        let connection = self.database.acquire().await.map_err(failed)?;
        let mut transaction = Guarded::new(connection, kept);
        let started = match transaction.connection() {
            Some(connection) => match self.start(connection, key, terms).await {
                Ok(opening) => self.go_on(connection, opening, fingerprint).await,
                Err(error) => Err(error),
            },
            None => Err(StoreErrorKind::Other.into()),
        };
        match started {
            Ok(Started::Free(found)) => Ok(Opened::Free(transaction, found)),
            Ok(Started::Answered(answer)) => {
                // The caller needn't wait until the lock is free. In this process, who wants to run next does; in another one it
                // keeps nobody from an answer, as there is a record.
                transaction.set_leaving();
                tokio::spawn(leave(transaction));
                Ok(Opened::Answered(answer))
            }
            Err(error) => {
                // It may be one that doesn't answer any more.
                drop(transaction.close().await);
                Err(error)
            }
        }
    }

    async fn commit(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), NotCommitted> {
        if depth::<Postgres>(connection) != 1 {
            return Err(unless_ended(connection, NotCommitted::Misused(NESTED)).await);
        }
        let (nonce, response) = (claim.nonce(), response.encode());
        let arguments = Argument::of_record(claim, &nonce, Some(&response), retention);
        let saved = self.database.run_on(connection, &self.sql.save, &arguments);
        match saved.await {
            Ok(saved) if saved.is_empty() => Err(why_not_saved(connection, claim).await),
            Ok(_) => commit::<Postgres>(connection).await.map_err(not_committed),
            Err(error) if is_answer(&error) => {
                Err(unless_ended(connection, not_saved(error)).await)
            }
            Err(error) => Err(NotCommitted::Failed(error)),
        }
    }

    async fn undo(
        &self,
        connection: &mut PgConnection,
        _claim: &Claim,
    ) -> Result<(), NotCommitted> {
        match sqlx::raw_sql(ROLLBACK_TO_SAVEPOINT)
            .execute(connection)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if is_no_savepoint(&error) => Err(NotCommitted::Ended),
            Err(error) => Err(NotCommitted::Failed(error)),
        }
    }

    async fn read_locked(&self, key: &RecordKey) -> Result<Found, StoreError> {
        let connection = self.database.acquire().await.map_err(failed)?;
        let mut transaction = Guarded::<Postgres>::new(connection, Kept::default());
        let rows = match transaction.connection() {
            Some(connection) => script(connection, self.sql.read_locked(key)).await,
            None => Err(StoreErrorKind::Other.into()),
        };
        match rows {
            Ok(rows) => {
                transaction.pool();
                found(rows.get(1))
            }
            Err(error) => {
                end_uncounted(transaction).await;
                Err(error)
            }
        }
    }

    async fn save_unknown_on(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
        retention: Duration,
    ) -> Result<(), StoreError> {
        script(connection, ROLLBACK.to_owned()).await?;
        let nonce = claim.nonce();
        let arguments = Argument::of_record(claim, &nonce, None, retention);
        let saved = self
            .database
            .run_on(connection, &self.sql.save_unknown, &arguments);
        saved.await.map(drop).map_err(failed)
    }

    async fn save_unknown(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        let nonce = claim.nonce();
        let arguments = Argument::of_record(claim, &nonce, None, retention);
        let saved = self.database.run(&self.sql.save_unknown, &arguments).await;
        saved.map(drop)
    }
}

enum Started {
    Free(Found),
    Answered(Reservation),
}

/// The record was not written, without an error.
async fn why_not_saved(connection: &mut PgConnection, claim: &Claim) -> NotCommitted {
    let row = sqlx::raw_sql(AssertSqlSafe(is_ours(claim.nonce())))
        .fetch_one(connection)
        .await;
    match row.and_then(|row| row.try_get(0)) {
        Ok(true) => NotCommitted::Lost,
        Ok(false) => NotCommitted::Ended,
        Err(error) => NotCommitted::Failed(error),
    }
}

fn not_saved(error: sqlx::Error) -> NotCommitted {
    if is_aborted(&error) {
        NotCommitted::Misused("a statement of the handler failed, and it answered as if it hadn't")
    } else if is_conflict(&error) {
        NotCommitted::Conflict(error)
    } else {
        NotCommitted::Failed(error)
    }
}

/// The reason, if the transaction is still the one with our savepoint. Otherwise the handler ended that one, and who knows how.
async fn unless_ended(connection: &mut PgConnection, reason: NotCommitted) -> NotCommitted {
    match sqlx::raw_sql(ROLLBACK_TO_SAVEPOINT)
        .execute(connection)
        .await
    {
        Err(error) if is_no_savepoint(&error) => NotCommitted::Ended,
        Ok(_) | Err(_) => reason,
    }
}

fn not_committed(error: sqlx::Error) -> NotCommitted {
    if is_conflict(&error) {
        NotCommitted::Conflict(error)
    } else if is_constraint(&error) {
        NotCommitted::Refused(error)
    } else {
        NotCommitted::Unsure(error)
    }
}
