use std::{sync::Arc, time::Duration};

use sqlx::{AssertSqlSafe, MySql, MySqlConnection, MySqlPool, Row};

use super::{
    database::{Database, execute, script},
    error::{failed, is_answer, is_conflict, is_duplicate, is_no_savepoint},
    statement::{found, literal},
    transaction_sql::TransactionSql,
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{
        Claim, Reservation, TableName, Terms,
        sql::{
            ASK_AGAIN, Attempts, Found, Kept, Stored, begin, bounded, depth, start_rollback,
            to_micros,
            transactions::{NESTED, NotCommitted, Opened, TransactionDialect},
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
            let refused = match execute(connection, AssertSqlSafe(open)).await {
                Ok(inserted) => {
                    let now = i64::try_from(inserted.last_insert_id()).unwrap_or(0);
                    bounded(begin::<MySql>(connection, self.sql.begin.text())).await?;
                    let stored = expired;
                    return Ok(Started::Free(Found { now, stored }));
                }
                Err(error) if is_duplicate(&error) || is_conflict(&error) => error,
                Err(error) => return Err(error),
            };
            let found = match self.look(connection, key, &refused).await? {
                Looked::Answer(started) => return Ok(started),
                Looked::Nothing(found) => found,
            };
            // Without anything there, it was another key's lock that the row met, for a moment.
            let is_next = is_duplicate(&refused) && found.is_some() && expired.is_none();
            if !is_next && !attempts.again().await {
                return Err(refused);
            }
            expired = found.or(expired);
        }
    }

    /// What is in the way of a key's row.
    async fn look(
        &self,
        connection: &mut MySqlConnection,
        key: &RecordKey,
        refused: &sqlx::Error,
    ) -> Result<Looked, sqlx::Error> {
        let look = if is_duplicate(refused) {
            self.sql.look(key)
        } else {
            self.sql.look_uncommitted(key)
        };
        let rows = script(connection, AssertSqlSafe(look)).await?;
        let found = match found(rows.first()) {
            Ok(found) => found,
            Err(error) => return Ok(Looked::Answer(Started::Unreadable(error))),
        };
        if found.live().is_some() {
            return Ok(Looked::Answer(Started::Found(found)));
        }
        let is_held = match rows.get(1) {
            Some(row) => row.try_get(0)?,
            None => false,
        };
        Ok(if is_held && found.stored.is_none() {
            Looked::Answer(Started::InFlight)
        } else {
            Looked::Nothing(found.stored)
        })
    }
}

impl TransactionDialect for Dialect {
    type Database = MySql;

    async fn read(&self, key: &RecordKey) -> Result<Found, StoreError> {
        let read = self.sql.read.between_commits(&[literal(key.as_bytes())]);
        let rows = self.database.fetch_script(&read).await?;
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
                    && script(connection, self.sql.roll_back.text()).await.is_ok()
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
        let ended = match saved {
            Ok(saved) if saved.rows_affected() > 0 => {
                match script(connection, self.sql.commit.text()).await {
                    Ok(_) => {
                        start_rollback::<MySql>(connection);
                        return Ok(());
                    }
                    Err(error) if is_no_savepoint(&error) => error,
                    Err(error) => return Err(self.not_committed(connection, claim, error).await),
                }
            }
            Ok(_) => sqlx::Error::RowNotFound,
            Err(error) if is_conflict(&error) => error,
            Err(error) => return Err(self.not_saved(connection, claim, error).await),
        };
        Err(match self.is_committed(connection, claim).await {
            Ok(true) => NotCommitted::Ended,
            Ok(false) => NotCommitted::Conflict(ended),
            Err(error) => NotCommitted::Unsure(error),
        })
    }

    async fn undo(
        &self,
        connection: &mut MySqlConnection,
        claim: &Claim,
    ) -> Result<(), NotCommitted> {
        match script(connection, self.sql.undo.text()).await {
            Ok(_) => {
                start_rollback::<MySql>(connection);
                Ok(())
            }
            Err(ended) if is_no_savepoint(&ended) => {
                Err(match self.is_committed(connection, claim).await {
                    Ok(false) => NotCommitted::Conflict(ended),
                    Ok(true) | Err(_) => NotCommitted::Ended,
                })
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

    async fn save_unknown_on(
        &self,
        connection: &mut MySqlConnection,
        claim: &Claim,
        retention: Duration,
    ) -> Result<(), StoreError> {
        // Rolled back by then, and with autocommit: see `is_committed`.
        let save = AssertSqlSafe(self.sql.save_unknown(claim, retention));
        execute(connection, save).await.map(drop).map_err(failed)
    }

    async fn save_unknown(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        let save = self.sql.save_unknown(claim, retention);
        self.database.execute_script(&save).await.map(drop)
    }
}

impl Dialect {
    /// Of a transaction that isn't the one that we opened any more: whether that one was committed, by the handler.
    /// If not, it was rolled back, by a deadlock, say.
    async fn is_committed(
        &self,
        connection: &mut MySqlConnection,
        claim: &Claim,
    ) -> Result<bool, sqlx::Error> {
        let rows = script(connection, AssertSqlSafe(self.sql.is_committed(claim))).await?;
        let is_committed = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        start_rollback::<MySql>(connection);
        Ok(is_committed)
    }

    /// The record couldn't be written. Nothing is committed then, unless the handler did that before.
    async fn not_saved(
        &self,
        connection: &mut MySqlConnection,
        claim: &Claim,
        error: sqlx::Error,
    ) -> NotCommitted {
        if !is_answer(&error) {
            return NotCommitted::Failed(error);
        }
        match self.is_committed(connection, claim).await {
            Ok(true) => NotCommitted::Ended,
            Ok(false) => NotCommitted::Failed(error),
            Err(_) => NotCommitted::Unsure(error),
        }
    }

    /// The commit failed, or what follows it: only a cluster has conflicts as late as this.
    async fn not_committed(
        &self,
        connection: &mut MySqlConnection,
        claim: &Claim,
        error: sqlx::Error,
    ) -> NotCommitted {
        if !is_conflict(&error) {
            return NotCommitted::Unsure(error);
        }
        match self.is_committed(connection, claim).await {
            Ok(false) => NotCommitted::Conflict(error),
            Ok(true) | Err(_) => NotCommitted::Unsure(error),
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

enum Looked {
    Answer(Started),
    /// Or an expired row.
    Nothing(Option<Stored>),
}
