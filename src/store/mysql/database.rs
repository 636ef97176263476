use sqlx::{
    AssertSqlSafe, MySql, MySqlConnection, MySqlPool, SqlSafeStr,
    mysql::{MySqlArguments, MySqlQueryResult, MySqlRow},
    query::Query,
};

use super::{
    error::{failed, is_answer, is_denied, is_in_reading_transaction, lost_to_another},
    statement::IS_COMMITTED,
};
use crate::{
    StoreError,
    store::sql::{Guarded, Kept, bounded, retry},
};

/// The application's pool, and how statements are sent through it.
#[derive(Clone, Debug)]
pub(super) struct Database {
    pool: MySqlPool,
}

impl Database {
    pub(super) fn new(pool: MySqlPool) -> Self {
        Self { pool }
    }

    /// A connection, with what is to be kept as long as it is used.
    pub(super) async fn acquire(&self, kept: Kept) -> Result<Guarded<MySql>, sqlx::Error> {
        Ok(Guarded::new(self.pool.acquire().await?, kept))
    }

    /// Runs a statement with `{told}` in it in a transaction of its own, again if it lost against another one.
    ///
    /// A connection of the pool may be in a transaction that a stranger began: sqlx leaves it there where a `begin` is dropped. What is
    /// done in that one is committed by nobody, so unless the statement tells that it was alone, a `COMMIT` follows. Where nothing
    /// secret is written, a text does with one round trip on MySQL as well.
    pub(super) async fn write<'q>(
        &self,
        query: impl Fn() -> Query<'q, MySql, MySqlArguments>,
    ) -> Result<MySqlQueryResult, sqlx::Error> {
        retry(lost_to_another(), || self.write_once(&query)).await
    }

    /// Reads what others don't change.
    pub(super) async fn fetch<'q>(
        &self,
        query: impl Fn() -> Query<'q, MySql, MySqlArguments>,
    ) -> Result<Vec<MySqlRow>, StoreError> {
        let attempt = || self.fetch_once(query());
        retry(lost_to_another(), attempt).await.map_err(failed)
    }

    /// Runs statements with their arguments in the text, again if they lost against others.
    pub(super) async fn execute_script(&self, text: &str) -> Result<MySqlQueryResult, StoreError> {
        let attempt = || self.execute_script_once(text.to_owned());
        retry(lost_to_another(), attempt).await.map_err(failed)
    }

    /// The same, for its rows.
    pub(super) async fn fetch_script(&self, text: &str) -> Result<Vec<MySqlRow>, StoreError> {
        let attempt = || self.fetch_script_once(text.to_owned());
        retry(lost_to_another(), attempt).await.map_err(failed)
    }

    /// Whether this user may do what is explained. That it can't be told, by a server that only reads, say, is no error.
    pub(super) async fn may(&self, explain: &str) -> Result<(), StoreError> {
        match self.fetch_script_once(explain.to_owned()).await {
            Err(error) if is_denied(&error) => Err(failed(error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn write_once<'q>(
        &self,
        query: impl Fn() -> Query<'q, MySql, MySqlArguments>,
    ) -> Result<MySqlQueryResult, sqlx::Error> {
        let mut guarded = self.acquire(Kept::default()).await?;
        let answer = match guarded.connection() {
            Some(connection) => bounded(write_committed(connection, query)).await,
            None => Err(sqlx::Error::PoolClosed),
        };
        give_back(guarded, answer).await
    }

    async fn fetch_once(
        &self,
        query: Query<'_, MySql, MySqlArguments>,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let mut guarded = self.acquire(Kept::default()).await?;
        let answer = match guarded.connection() {
            // To the end: `fetch_optional` stops at the row, and drops an error that comes after it.
            Some(connection) => bounded(query.fetch_all(connection)).await,
            None => Err(sqlx::Error::PoolClosed),
        };
        give_back(guarded, answer).await
    }

    async fn fetch_script_once(&self, text: String) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let mut guarded = self.acquire(Kept::default()).await?;
        let answer = match guarded.connection() {
            Some(connection) => script(connection, AssertSqlSafe(text)).await,
            None => Err(sqlx::Error::PoolClosed),
        };
        give_back(guarded, answer).await
    }

    async fn execute_script_once(&self, text: String) -> Result<MySqlQueryResult, sqlx::Error> {
        let mut guarded = self.acquire(Kept::default()).await?;
        let answer = match guarded.connection() {
            Some(connection) => execute(connection, AssertSqlSafe(text)).await,
            None => Err(sqlx::Error::PoolClosed),
        };
        give_back(guarded, answer).await
    }
}

/// Runs several statements in one round trip, as they are written, and gives the rows of all of them. The first that fails is the
/// last that runs.
///
/// They must be made of constants, numbers and hexadecimal digits.
pub(super) async fn script(
    connection: &mut MySqlConnection,
    statements: impl SqlSafeStr,
) -> Result<Vec<MySqlRow>, sqlx::Error> {
    bounded(sqlx::raw_sql(statements).fetch_all(connection)).await
}

/// The same, for how many rows they changed in all.
pub(super) async fn execute(
    connection: &mut MySqlConnection,
    statements: impl SqlSafeStr,
) -> Result<MySqlQueryResult, sqlx::Error> {
    bounded(sqlx::raw_sql(statements).execute(connection)).await
}

async fn write_committed<'q>(
    connection: &mut MySqlConnection,
    query: impl Fn() -> Query<'q, MySql, MySqlArguments>,
) -> Result<MySqlQueryResult, sqlx::Error> {
    match end_after(connection, query()).await {
        // That transaction has ended now.
        Err(error) if is_in_reading_transaction(&error) => end_after(connection, query()).await,
        written => written,
    }
}

/// Runs a statement, and ends the transaction that it may have been in. Also after an error: that one would keep what was locked.
async fn end_after(
    connection: &mut MySqlConnection,
    query: Query<'_, MySql, MySqlArguments>,
) -> Result<MySqlQueryResult, sqlx::Error> {
    let written = query.execute(&mut *connection).await;
    let is_over = match &written {
        Ok(written) => written.last_insert_id() == IS_COMMITTED,
        Err(error) => !is_answer(error),
    };
    if !is_over {
        sqlx::raw_sql("COMMIT").execute(connection).await?;
    }
    written
}

/// A connection on which the server didn't answer is closed.
async fn give_back<T>(
    guarded: Guarded<MySql>,
    answer: Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    match &answer {
        Err(error) if !is_answer(error) => drop(guarded.close().await),
        Ok(_) | Err(_) => guarded.pool(),
    }
    answer
}
