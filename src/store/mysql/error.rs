use std::time::Duration;

use sqlx::mysql::MySqlDatabaseError;
use tokio::time::Instant;

use crate::{
    StoreError, StoreErrorKind,
    store::sql::{explained, unanswered},
};

/// What became of one of our own statements.
pub(super) fn failed(error: sqlx::Error) -> StoreError {
    let Some(number) = number(&error) else {
        return unanswered(error);
    };
    let kind = match number {
        DISK_FULL | RECORD_FILE_FULL => StoreErrorKind::Full,
        NO_DATABASE | UNKNOWN_DATABASE | UNKNOWN_COLUMN | NO_SUCH_TABLE => {
            return explained(NOT_MIGRATED, error);
        }
        number if DENIED.contains(&number) => return explained(NOT_ALLOWED, error),
        number if UNAVAILABLE.contains(&number) => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    };
    StoreError::new(kind, error)
}

/// The server itself answered: the connection is in order.
pub(super) fn is_answer(error: &sqlx::Error) -> bool {
    number(error).is_some()
}

/// The user lacks a privilege.
pub(super) fn is_denied(error: &sqlx::Error) -> bool {
    number(error).is_some_and(|number| DENIED.contains(&number))
}

/// The key has a row.
pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    number(error) == Some(DUPLICATE_ENTRY)
}

/// Another transaction holds the row's lock.
pub(super) fn is_locked(error: &sqlx::Error) -> bool {
    number(error) == Some(LOCK_WAIT_TIMEOUT)
}

/// The statement writes, and the transaction that it is in, or the next one by the session's default, only reads.
pub(super) fn is_in_reading_transaction(error: &sqlx::Error) -> bool {
    number(error) == Some(READING_TRANSACTION)
}

/// There is no such savepoint, and so not the transaction that had it.
pub(super) fn is_no_savepoint(error: &sqlx::Error) -> bool {
    number(error) == Some(NO_SUCH_SAVEPOINT)
}

/// The database undid one of two that got in each other's way.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    let conflicts = [
        DEADLOCK,
        LOCK_WAIT_TIMEOUT,
        RECORD_CHANGED,
        ROLLED_BACK_AT_COMMIT,
    ];
    number(error).is_some_and(|number| conflicts.contains(&number))
}

/// Whether a statement is to be run again. One that waited for a lock in vain may have waited for very long.
pub(super) fn lost_to_another() -> impl Fn(&sqlx::Error) -> bool {
    let began = Instant::now();
    move |error| is_conflict(error) && (!is_locked(error) || began.elapsed() < LOCK_LIMIT)
}

const LOCK_LIMIT: Duration = Duration::from_secs(5);

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error
        .as_database_error()?
        .try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

const RECORD_CHANGED: u16 = 1020;
const DISK_FULL: u16 = 1021;
const NO_DATABASE: u16 = 1046;
const UNKNOWN_DATABASE: u16 = 1049;
const UNKNOWN_COLUMN: u16 = 1054;
const DUPLICATE_ENTRY: u16 = 1062;
const RECORD_FILE_FULL: u16 = 1114;
const NO_SUCH_TABLE: u16 = 1146;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;
const NO_SUCH_SAVEPOINT: u16 = 1305;
const READING_TRANSACTION: u16 = 1792;
/// By MySQL's group replication.
const ROLLED_BACK_AT_COMMIT: u16 = 3101;

const DENIED: [u16; 4] = [
    1044, // the database
    1045, // the server
    1142, // the table
    1143, // a column
];

/// The server can't be used at all just now. Not those of a server that was reached, and only reads, or undid the statement in favour of
/// another one on the last attempt as well: a key may be done there.
const UNAVAILABLE: [u16; 17] = [
    1040, // too many connections
    1041, // out of memory
    1047, // a Galera node that isn't ready
    1053, // the server shuts down
    1129, // the host is blocked
    1152, // an aborted connection
    1158, // a packet couldn't be read
    1159, // or not in time
    1160, // or not be written
    1161, // or not in time
    1184, // an aborted connection
    1203, // too many connections of this user
    1226, // a user's limit
    1317, // the statement was killed
    1927, // the connection was killed
    1969, // the statement took too long
    3024, // the same, on MySQL
];

const NOT_MIGRATED: &str = "the store's table is missing or was altered, run its `migrate()` or the SQL that is shipped with it";
const NOT_ALLOWED: &str = "the database user lacks a privilege on the store's table";
