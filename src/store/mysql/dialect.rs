use std::{sync::Arc, time::Duration};

use sqlx::{AssertSqlSafe, MySql, MySqlConnection, MySqlPool, Row};

use super::{
    database::{Database, script},
    error::{failed, is_answer, is_conflict, is_duplicate, is_no_savepoint},
    statement::found,
    transaction_sql::{TransactionSql, commit, roll_back, undo},
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{
        Claim, Reservation, TableName, Terms,
        sql::{
            ASK_AGAIN, Attempts, Found, Kept, Stored, begin, depth, set_ended, to_micros,
            transactions::{NESTED, NotCommitted, Opened, SAVEPOINT, TransactionDialect},
        },
    },
};

/// A transaction store on MySQL or MariaDB: the key's row is written first, and its lock is the key's.
#[derive(Clone, Debug)]
pub(super) struct Dialect {
    pub(super) database: Database,
    pub(super) sql: Arc<TransactionSql>,
}

impl Dialect {
    pub(super) fn new(pool: MySqlPool, table: &TableName) -> Self {
        Self {
            database: Database::new(pool),
            sql: Arc::new(TransactionSql::new(table)),
        }
    }

    pub(super) fn set_table(&mut self, table: &TableName) {
        self.sql = Arc::new(TransactionSql::new(table));
    }

    async fn start(
        &self,
        connection: &mut MySqlConnection,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Started, sqlx::Error> {
        let mut attempts = Attempts::default();
        let mut expired: Option<Stored> = None;
        loop {
            let open = match expired {
                None => self.sql.open(key, fingerprint, terms),
                Some(_) => self.sql.open_over_expired(key, fingerprint, terms),
            };
            let refused = match script(connection, AssertSqlSafe(open)).await {
                Ok(rows) => {
                    let now = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
                    begin::<MySql>(connection, SAVEPOINT).await?;
                    return Ok(Started::Free(Found {
                        now,
                        stored: expired,
                    }));
                }
                Err(error) => error,
            };
            let is_committed = is_duplicate(&refused);
            if !is_committed && !is_conflict(&refused) {
                return Err(refused);
            }
            let look = if is_committed {
                self.sql.look(key)
            } else {
                self.sql.look_uncommitted(key)
            };
            let rows = script(connection, AssertSqlSafe(look)).await?;
            let found = match found(rows.first()) {
                Ok(found) => found,
                Err(error) => return Ok(Started::Unreadable(error)),
            };
            if found.live().is_some() {
                return Ok(Started::Found(found));
            }
            let is_held = match rows.get(1) {
                Some(row) => row.try_get(0)?,
                None => false,
            };
            if is_held && found.stored.is_none() {
                return Ok(Started::InFlight);
            }
            // Where nothing is there, it was another key's lock that the row met, for a moment.
            if !is_committed && !attempts.again().await {
                return Err(refused);
            }
            expired = found.stored;
        }
    }
}

impl TransactionDialect for Dialect {
    type Database = MySql;

    async fn read(&self, key: &RecordKey) -> Result<Found, StoreError> {
        let read = || self.sql.read.query().bind(&key.as_bytes()[..]);
        let rows = self.database.fetch(read).await?;
        found(rows.first())
    }

    async fn open(
        &self,
        kept: Kept,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Opened<MySql>, StoreError> {
        let mut transaction = self.database.acquire(kept).await.map_err(failed)?;
        let Some(connection) = transaction.connection() else {
            return Err(StoreErrorKind::Other.into());
        };
        let answer = match self.start(connection, key, fingerprint, terms).await {
            Ok(Started::Free(found)) => return Ok(Opened::Free(transaction, found)),
            Ok(Started::Found(found)) => found.answer(fingerprint),
            Ok(Started::Unreadable(error)) => Err(error),
            Ok(Started::InFlight) => Ok(Some(Reservation::InFlight {
                retry_after: ASK_AGAIN,
            })),
            Err(error) => {
                // What has begun is given up, and the session as it was.
                if is_answer(&error)
                    && script(connection, AssertSqlSafe(roll_back())).await.is_ok()
                    && depth::<MySql>(connection) == 0
                {
                    transaction.pool();
                } else {
                    drop(transaction.close().await);
                }
                return Err(failed(error));
            }
        };
        transaction.pool();
        answer?
            .map(Opened::Answered)
            .ok_or_else(|| StoreErrorKind::Other.into())
    }

    async fn commit(
        &self,
        connection: &mut MySqlConnection,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), NotCommitted> {
        if depth::<MySql>(connection) != 1 {
            return Err(NotCommitted::Misused(NESTED));
        }
        let saved = self
            .sql
            .save
            .query()
            .bind(i64::try_from(claim.fence()).unwrap_or(i64::MAX))
            .bind(to_micros(retention))
            .bind(response.encode().to_vec())
            .bind(&claim.key().as_bytes()[..])
            .bind(claim.nonce().as_bytes().to_vec())
            .execute(&mut *connection)
            .await;
        match saved {
            Ok(saved) if saved.rows_affected() > 0 => {}
            Ok(_) => {
                return Err(self
                    .why_ended(connection, claim, sqlx::Error::RowNotFound)
                    .await);
            }
            Err(error) => return Err(self.not_saved(connection, claim, error).await),
        }
        match script(connection, AssertSqlSafe(commit())).await {
            Ok(_) => {
                set_ended::<MySql>(connection);
                Ok(())
            }
            Err(error) if is_no_savepoint(&error) => {
                Err(self.why_ended(connection, claim, error).await)
            }
            Err(error) => Err(NotCommitted::Unsure(error)),
        }
    }

    async fn undo(
        &self,
        connection: &mut MySqlConnection,
        claim: &Claim,
    ) -> Result<(), NotCommitted> {
        match script(connection, AssertSqlSafe(undo())).await {
            Ok(_) => {
                set_ended::<MySql>(connection);
                Ok(())
            }
            Err(error) if is_no_savepoint(&error) => {
                match self.why_ended(connection, claim, error).await {
                    // It ended, and nobody knows how.
                    NotCommitted::Unsure(_) => Err(NotCommitted::Ended),
                    reason => Err(reason),
                }
            }
            Err(error) => Err(NotCommitted::Failed(error)),
        }
    }

    async fn read_locked(&self, key: &RecordKey) -> Result<Found, StoreError> {
        let mut guarded = self
            .database
            .acquire(Kept::default())
            .await
            .map_err(failed)?;
        let Some(connection) = guarded.connection() else {
            return Err(StoreErrorKind::Other.into());
        };
        let rows = script(connection, AssertSqlSafe(self.sql.read_locked(key))).await;
        match rows {
            Ok(rows) => {
                guarded.pool();
                found(rows.first())
            }
            Err(error) => {
                // The session isn't as it was.
                drop(guarded.close().await);
                Err(failed(error))
            }
        }
    }

    async fn save_unknown(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        let save = || {
            self.sql
                .save_unknown
                .query()
                .bind(to_micros(retention))
                .bind(&claim.key().as_bytes()[..])
                .bind(claim.nonce().as_bytes().to_vec())
        };
        self.database.execute(save).await.map(drop)
    }
}

impl Dialect {
    /// The transaction isn't the one that we opened: it was committed, by the handler, or rolled back, mostly by a deadlock.
    async fn why_ended(
        &self,
        connection: &mut MySqlConnection,
        claim: &Claim,
        error: sqlx::Error,
    ) -> NotCommitted {
        let rows = script(connection, AssertSqlSafe(self.sql.is_committed(claim))).await;
        let is_committed = rows.and_then(|rows| {
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            row.try_get::<bool, _>(0)
        });
        match is_committed {
            Ok(true) => NotCommitted::Ended,
            Ok(false) => {
                set_ended::<MySql>(connection);
                NotCommitted::Conflict(error)
            }
            Err(error) => NotCommitted::Unsure(error),
        }
    }

    /// The record couldn't be written.
    async fn not_saved(
        &self,
        connection: &mut MySqlConnection,
        claim: &Claim,
        error: sqlx::Error,
    ) -> NotCommitted {
        if !is_answer(&error) {
            return NotCommitted::Failed(error);
        }
        if is_conflict(&error) {
            return self.why_ended(connection, claim, error).await;
        }
        match script(connection, AssertSqlSafe(roll_back())).await {
            Ok(_) => {
                set_ended::<MySql>(connection);
                NotCommitted::Failed(error)
            }
            Err(error) => NotCommitted::Unsure(error),
        }
    }
}

enum Started {
    Free(Found),
    /// A live record.
    Found(Found),
    Unreadable(StoreError),
    /// Another transaction has the key.
    InFlight,
}
