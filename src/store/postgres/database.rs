use sqlx::{
    AssertSqlSafe, ConnectOptions, PgConnection, PgPool, Postgres, Row, pool::PoolConnection,
    postgres::PgRow,
};

use super::{
    error::{failed, is_aborted, is_answer, is_conflict, is_older, is_read_only},
    statement::{Argument, Statement},
    transaction_sql::ROLLBACK,
};
use crate::{
    StoreError,
    store::sql::{
        Guarded, Kept, begin, bounded, commit, retry, rollback, transactions::end_uncounted,
    },
};

/// The application's pool, and how statements are sent through it.
#[derive(Clone, Debug)]
pub(super) struct Database {
    pool: PgPool,
    has_cache: bool,
}

impl Database {
    /// A pool without a statement cache may lead through a transaction pooler. sqlx sends an unnamed statement and its arguments in two
    /// steps, and such a pooler may change the server in between: outside of a transaction, arguments then go into the text.
    pub(super) fn new(pool: PgPool) -> Self {
        let url = pool.connect_options().to_url_lossy();
        let has_cache = !url
            .query_pairs()
            .any(|(name, value)| name == "statement-cache-capacity" && value == "0");
        Self { pool, has_cache }
    }

    pub(super) async fn acquire(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        self.pool.acquire().await
    }

    /// Runs a statement in a transaction of its own, again if it lost against another.
    ///
    /// A connection of the pool may be in a transaction that a stranger began: sqlx leaves it there where a `begin` is dropped. What is
    /// done in that one is committed by nobody, so a statement that writes tells by a column `is_own` whether it was alone.
    pub(super) async fn run(
        &self,
        statement: &Statement,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<PgRow>, StoreError> {
        self.try_run(statement, arguments).await.map_err(failed)
    }

    /// The same, with the error as it came.
    pub(super) async fn try_run(
        &self,
        statement: &Statement,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        retry(is_conflict, || self.run_once(statement, arguments)).await
    }

    async fn run_once(
        &self,
        statement: &Statement,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut guarded = Guarded::<Postgres>::new(self.acquire().await?, Kept::default());
        let Some(connection) = guarded.connection() else {
            return Err(sqlx::Error::PoolClosed);
        };
        let answer = bounded(self.run_committed(connection, statement, arguments)).await;
        match &answer {
            Err(error) if !is_answer(error) => drop(guarded.close().await),
            Ok(_) | Err(_) => guarded.pool(),
        }
        answer
    }

    async fn run_committed(
        &self,
        connection: &mut PgConnection,
        statement: &Statement,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let answer = if self.has_cache {
            let prepared = statement.prepared(arguments);
            alone(prepared.fetch_all(&mut *connection).await)
        } else if let Some(text) = statement.spelled(arguments) {
            let text = sqlx::raw_sql(AssertSqlSafe(text));
            alone(text.fetch_all(&mut *connection).await)
        } else {
            let rows = in_transaction(connection, statement, arguments).await;
            rows.map(Some)
        };
        match answer {
            Ok(Some(rows)) => return Ok(rows),
            Ok(None) => {}
            Err(error) if is_aborted(&error) || is_read_only(&error) || is_older(&error) => {}
            Err(error) => return Err(error),
        }
        // Whatever the stranger did, nobody would have committed it.
        sqlx::raw_sql(ROLLBACK).execute(&mut *connection).await?;
        in_transaction(connection, statement, arguments).await
    }

    /// Reads a whole table at READ COMMITTED: a serializable transaction that has read it could make others lose, which write to it.
    pub(super) async fn read_all(
        &self,
        statement: &Statement,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<PgRow>, StoreError> {
        let text = statement.spelled(arguments).unwrap_or_default();
        let text = format!("{BEGIN_ALONE} READ ONLY; {text}; COMMIT");
        let answer = match self.read_once(&text).await {
            // The stranger's transaction has ended now.
            Err(error) if is_older(&error) || is_aborted(&error) => self.read_once(&text).await,
            answer => answer,
        };
        answer.map_err(failed)
    }

    async fn read_once(&self, text: &str) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut guarded = Guarded::<Postgres>::new(self.acquire().await?, Kept::default());
        let Some(connection) = guarded.connection() else {
            return Err(sqlx::Error::PoolClosed);
        };
        let text = sqlx::raw_sql(AssertSqlSafe(text.to_owned()));
        let answer = bounded(text.fetch_all(connection)).await;
        match &answer {
            Ok(_) => guarded.pool(),
            Err(error) if is_answer(error) => end_uncounted(guarded).await,
            Err(_) => drop(guarded.close().await),
        }
        answer
    }

    /// Tells whether the server answers.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        let ping = Statement::fixed("SELECT 1");
        self.run(&ping, &[]).await.map(drop)
    }

    /// Runs a statement in the transaction that is open on this connection.
    pub(super) async fn run_on(
        &self,
        connection: &mut PgConnection,
        statement: &Statement,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        if self.has_cache {
            statement.prepared(arguments).fetch_all(connection).await
        } else if let Some(text) = statement.spelled(arguments) {
            sqlx::raw_sql(AssertSqlSafe(text))
                .fetch_all(connection)
                .await
        } else {
            statement.unnamed(arguments).fetch_all(connection).await
        }
    }
}

/// Runs several statements in one round trip, as they are written, and gives the rows of all of them.
///
/// They must be made of constants, numbers and hexadecimal digits.
pub(super) async fn script(
    connection: &mut PgConnection,
    statements: String,
) -> Result<Vec<PgRow>, StoreError> {
    let rows = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(connection);
    bounded(rows).await.map_err(failed)
}

/// No rows if the statement was not alone in its transaction.
fn alone(answer: Result<Vec<PgRow>, sqlx::Error>) -> Result<Option<Vec<PgRow>>, sqlx::Error> {
    let rows = answer?;
    let is_strange = |row: &PgRow| row.try_get("is_own").is_ok_and(|is_own: bool| !is_own);
    Ok((!rows.first().is_some_and(is_strange)).then_some(rows))
}

/// Fails in a stranger's transaction that has done or read something: `NOT DEFERRABLE`, which no transaction is by default, may be said
/// before its first statement only. What a stranger left is never committed by us.
const BEGIN_ALONE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED NOT DEFERRABLE";

/// Between `BEGIN` and `COMMIT`, a message each.
async fn in_transaction(
    connection: &mut PgConnection,
    statement: &Statement,
    arguments: &[Argument<'_>],
) -> Result<Vec<PgRow>, sqlx::Error> {
    begin::<Postgres>(connection, BEGIN_ALONE).await?;
    let rows = statement
        .unnamed(arguments)
        .fetch_all(&mut *connection)
        .await;
    let done = match rows {
        Ok(rows) => commit::<Postgres>(connection).await.map(|()| rows),
        Err(error) => Err(error),
    };
    if done.is_err() {
        // Also where COMMIT failed, as sqlx goes on counting the transaction then.
        rollback::<Postgres>(connection).await?;
    }
    done
}
