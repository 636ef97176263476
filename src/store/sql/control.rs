//! Transactions by hand. `sqlx::Transaction` gives up its transaction when COMMIT fails, where a busy one may be sent again, and
//! can't close its connection. Statements alone would leave sqlx's own count of nested transactions wrong for the handler.

use sqlx::{Database, Error, SqlSafeStr};
use sqlx_core::transaction::TransactionManager;

/// Starts a transaction by this statement, on a connection that has none.
pub(crate) async fn begin<DB: Database>(
    connection: &mut DB::Connection,
    statement: impl SqlSafeStr,
) -> Result<(), Error> {
    DB::TransactionManager::begin(connection, Some(statement.into_sql_str())).await
}

/// Commits. On an error the transaction may still be open.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) async fn commit<DB: Database>(connection: &mut DB::Connection) -> Result<(), Error> {
    DB::TransactionManager::commit(connection).await
}

/// Rolls the innermost transaction back.
pub(crate) async fn rollback<DB: Database>(connection: &mut DB::Connection) -> Result<(), Error> {
    DB::TransactionManager::rollback(connection).await
}

/// Leaves a rollback to the connection's next use, or to its way back into the pool, and counts it now. Where a statement of ours has
/// ended the transaction already, it finds nothing.
#[cfg(feature = "mysql")]
pub(crate) fn start_rollback<DB: Database>(connection: &mut DB::Connection) {
    DB::TransactionManager::start_rollback(connection);
}

/// How many transactions sqlx believes to be open, nested ones included.
pub(crate) fn depth<DB: Database>(connection: &DB::Connection) -> usize {
    DB::TransactionManager::get_transaction_depth(connection)
}
