//! What the SQL backends share. Only the dialect differs: statements, locking and error codes.

mod control;
mod decide;
mod guarded;
mod micros;
mod registry;
mod report;
mod slot;
mod stored;

pub(crate) use self::{
    control::{begin, commit, depth, rollback},
    decide::{ASK_AGAIN, Decision, decide},
    guarded::{Guarded, Kept},
    micros::{from_micros, to_micros},
    registry::{Busy, Entry, Registry},
    report::{report_unknown_not_written, report_unused},
    slot::{End, Lent, NotTaken, Returned, Slot},
    stored::{Columns, Found, State, Stored},
};
