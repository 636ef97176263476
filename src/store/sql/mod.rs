//! What the SQL backends share. Only the dialect differs: statements, locking and error codes.

mod attempts;
mod control;
mod decide;
mod driver_error;
mod fences;
mod guarded;
pub(crate) mod hex;
pub(crate) mod leases;
mod limit;
pub(crate) mod listing;
mod micros;
mod registry;
mod report;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod retry;
mod slot;
mod stored;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod table_name;
pub(crate) mod transactions;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use self::control::commit;
#[cfg(feature = "mysql")]
pub(crate) use self::control::start_rollback;
#[cfg(feature = "sqlite")]
pub(crate) use self::stored::corrupt;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use self::table_name::{InvalidTableName, TableName};
pub(crate) use self::{
    attempts::Attempts,
    control::{begin, depth, rollback},
    decide::{ASK_AGAIN, Decision, decide},
    driver_error::{explained, unanswered},
    fences::Fences,
    guarded::{Guarded, Kept},
    limit::ANSWER_LIMIT,
    micros::{from_micros, to_micros},
    registry::{Busy, Entry, Registry, Running},
    report::{report_unknown_not_written, report_unused},
    slot::{End, Lent, NotTaken, Returned, Slot},
    stored::{Columns, Found, State, Stored},
};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use self::{limit::bounded, retry::retry};
