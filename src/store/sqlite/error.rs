use sqlx::{error::DatabaseError, sqlite::SqliteError};

use crate::{
    StoreError, StoreErrorKind,
    store::sql::{explained, unanswered},
};

const SQLITE_ERROR: i32 = 1;
const SQLITE_BUSY: i32 = 5;
const SQLITE_LOCKED: i32 = 6;
const SQLITE_IOERR: i32 = 10;
const SQLITE_FULL: i32 = 13;
const SQLITE_CANTOPEN: i32 = 14;
const SQLITE_CONSTRAINT: i32 = 19;
const SQLITE_BUSY_SNAPSHOT: i32 = 517;

/// What became of one of our own statements.
pub(super) fn failed(error: sqlx::Error) -> StoreError {
    let Some(code) = code(&error) else {
        return unanswered(error);
    };
    let kind = match code {
        SQLITE_BUSY | SQLITE_LOCKED | SQLITE_IOERR | SQLITE_CANTOPEN => StoreErrorKind::Unavailable,
        SQLITE_FULL => StoreErrorKind::Full,
        // Our statements are constants: what doesn't compile lacks its table.
        SQLITE_ERROR => return explained(NOT_MIGRATED, error),
        _ => StoreErrorKind::Other,
    };
    StoreError::new(kind, error)
}

/// Another connection holds a lock, and went on holding it for the whole busy timeout.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(code(error), Some(SQLITE_BUSY | SQLITE_LOCKED))
}

/// A constraint that is checked at COMMIT, such as a deferred foreign key, doesn't hold.
pub(super) fn is_constraint(error: &sqlx::Error) -> bool {
    code(error) == Some(SQLITE_CONSTRAINT)
}

/// The statement makes no sense as things stand: a savepoint, say, that isn't there.
pub(super) fn is_refused(error: &sqlx::Error) -> bool {
    code(error) == Some(SQLITE_ERROR)
}

/// The transaction was begun by a read, and wants to write after another one has written.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    extended_code(error) == Some(SQLITE_BUSY_SNAPSHOT)
}

/// The primary result code: the extended one adds detail in the higher bytes.
fn code(error: &sqlx::Error) -> Option<i32> {
    extended_code(error).map(|extended| extended & 0xff)
}

fn extended_code(error: &sqlx::Error) -> Option<i32> {
    let error = error.as_database_error()?;
    error
        .try_downcast_ref::<SqliteError>()?
        .code()?
        .parse()
        .ok()
}

const NOT_MIGRATED: &str = "the store's table is missing or was altered, run its `migrate()`";
