use sqlx::postgres::PgDatabaseError;

use crate::{
    StoreError, StoreErrorKind,
    store::sql::{explained, unanswered},
};

/// What became of one of our own statements.
pub(super) fn failed(error: sqlx::Error) -> StoreError {
    let Some(state) = state(&error) else {
        return unanswered(error);
    };
    let kind = match &*state {
        "53100" => StoreErrorKind::Full,
        // It was reached: a standby, or a session that may only read; conflicts that went on to the last attempt.
        "25006" | "40001" | "40P01" => StoreErrorKind::Other,
        "42P01" | "42703" | "3F000" => return explained(NOT_MIGRATED, error),
        "42501" => return explained(NOT_ALLOWED, error),
        "26000" | "42P05" => return explained(POOLER, error),
        // A transaction that idled or lasted for too long, and its connection.
        "25P03" | "25P04" => StoreErrorKind::Unavailable,
        // Connection exceptions, resources, an operator's intervention.
        state
            if ["08", "53", "57"]
                .iter()
                .any(|class| state.starts_with(class)) =>
        {
            StoreErrorKind::Unavailable
        }
        _ => StoreErrorKind::Other,
    };
    StoreError::new(kind, error)
}

/// The database undid one of two that got in each other's way.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    matches!(state(error).as_deref(), Some("40001" | "40P01"))
}

/// A constraint doesn't hold. At COMMIT, where deferred ones are checked, or a deferred trigger raises, that is a rollback.
pub(super) fn is_constraint(error: &sqlx::Error) -> bool {
    state(error).is_some_and(|state| state.starts_with("23") || state.starts_with("P0"))
}

/// The database only reads.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    state(error).as_deref() == Some("25006")
}

/// There is no such savepoint, or no transaction at all.
pub(super) fn is_no_savepoint(error: &sqlx::Error) -> bool {
    matches!(state(error).as_deref(), Some("3B001" | "25P01"))
}

/// An earlier statement failed, and the transaction takes no more.
pub(super) fn is_aborted(error: &sqlx::Error) -> bool {
    state(error).as_deref() == Some("25P02")
}

/// A transaction was open already, and had begun its work.
pub(super) fn is_older(error: &sqlx::Error) -> bool {
    state(error).as_deref() == Some("25001")
}

/// The server itself answered: the connection is in order.
pub(super) fn is_answer(error: &sqlx::Error) -> bool {
    state(error).is_some()
}

fn state(error: &sqlx::Error) -> Option<String> {
    let error = error.as_database_error()?;
    Some(
        error
            .try_downcast_ref::<PgDatabaseError>()?
            .code()
            .to_owned(),
    )
}

const NOT_MIGRATED: &str = "the store's table is missing or was altered, run its `migrate()` or the SQL that is shipped with it";
const NOT_ALLOWED: &str = "the database user lacks a privilege on the store's table";
const POOLER: &str = "prepared statements don't work through this pooler: connect with `statement_cache_capacity(0)`";
