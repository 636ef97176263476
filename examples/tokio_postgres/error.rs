use tokio_postgres::{
    Error,
    error::{DbError, Severity, SqlState},
};
use tower_idempotency::{StoreError, StoreErrorKind};

/// What an error means outside of a commit.
pub(crate) fn failed(error: Error) -> StoreError {
    let refused = error.as_db_error();
    let kind = match refused.and_then(DbError::parsed_severity) {
        Some(Severity::Error) => StoreErrorKind::Other,
        // The session is gone, or there was none.
        _ => StoreErrorKind::Unavailable,
    };
    StoreError::new(kind, error)
}

/// What an error on the way to a commit means.
pub(crate) fn not_committed(error: Error) -> StoreError {
    let refused = error.as_db_error();
    let kind = match refused.map(|refused| (refused.parsed_severity(), refused.code())) {
        // A statement of the handler's had failed, and it went on all the same.
        Some((_, &SqlState::IN_FAILED_SQL_TRANSACTION)) => StoreErrorKind::Misused,
        Some((_, &SqlState::T_R_DEADLOCK_DETECTED)) => StoreErrorKind::Conflict,
        Some((Some(Severity::Error), _)) => StoreErrorKind::RolledBack,
        // The session is gone, and perhaps only the answer to `COMMIT`: to be asked again.
        _ => StoreErrorKind::OutcomeUnknown,
    };
    StoreError::new(kind, error)
}

/// Whether the handler ended the transaction by itself.
pub(crate) fn was_ended(error: &Error) -> bool {
    let gone = [
        SqlState::S_E_INVALID_SPECIFICATION,
        SqlState::NO_ACTIVE_SQL_TRANSACTION,
    ];
    error.code().is_some_and(|code| gone.contains(code))
}
