use std::sync::Arc;

use sqlx::{
    AssertSqlSafe, FromRow, MySql, SqlSafeStr, SqlStr,
    mysql::{MySqlArguments, MySqlRow},
    query::Query,
};

use super::error::failed;
use crate::{
    StoreError,
    store::{
        TableName,
        sql::{Columns, Found, hex},
    },
};

/// The database's clock in microseconds since 1970, whatever the session's time zone. It stands still within a statement.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// A statement of one store, or several, with its table's name in it: cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Statement(SqlStr);

impl Statement {
    pub(super) fn new(text: String) -> Self {
        Self(AssertSqlSafe(Arc::<str>::from(text)).into_sql_str())
    }

    /// To be sent as it is.
    pub(super) fn text(&self) -> SqlStr {
        self.0.clone()
    }

    /// With these in the place of its question marks, and between two `COMMIT`s. Where a stranger has left the session in a
    /// transaction, as sqlx does when a `begin` is dropped, the statement would not see what others have committed since, nor would
    /// what it writes be committed; and where the session doesn't autocommit, it begins one by itself.
    pub(super) fn between_commits(&self, arguments: &[String]) -> String {
        let mut parts = self.0.as_str().split('?');
        let mut text = format!("COMMIT; {}", parts.next().unwrap_or_default());
        for (argument, part) in arguments.iter().zip(parts) {
            text.push_str(argument);
            text.push_str(part);
        }
        text.push_str("; COMMIT");
        text
    }

    /// To be prepared once per connection.
    pub(super) fn query<'q>(&self) -> Query<'q, MySql, MySqlArguments> {
        sqlx::query(self.text())
    }
}

/// Nothing, as a number; and as the id of what was inserted last, [`IS_COMMITTED`] if the statement is in a transaction of its own. MySQL
/// can't tell, and so never does.
const TOLD: &str = "0 * LAST_INSERT_ID(0 /*M! + (@@in_transaction = 0 AND @@autocommit = 1) */)";

/// What a statement with `{told}` in it tells that is committed by itself.
pub(super) const IS_COMMITTED: u64 = 1;

/// Puts `{table}`, `{now}` and `{told}` into the template.
pub(super) fn filled(template: &str, table: &TableName) -> String {
    template
        .replace("{table}", &table.quoted('`'))
        .replace("{now}", NOW)
        .replace("{told}", TOLD)
}

/// Bytes as they are written in a statement.
pub(super) fn literal(bytes: &[u8]) -> String {
    let mut literal = String::with_capacity(bytes.len() * 2 + 3);
    literal.push_str("x'");
    hex::encode(bytes, &mut literal);
    literal.push('\'');
    literal
}

/// The record of the one row that a reading statement gives.
pub(super) fn found(row: Option<&MySqlRow>) -> Result<Found, StoreError> {
    let row = row.ok_or(sqlx::Error::RowNotFound);
    Found::read(row.and_then(Columns::from_row).map_err(failed)?)
}
