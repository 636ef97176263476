//! What the SQL backends share. Only the dialect differs: statements, locking and error codes.

mod decide;
mod micros;
mod stored;

pub(crate) use self::{
    decide::{Decision, decide},
    micros::{from_micros, to_micros},
    stored::{Columns, Found, State, Stored},
};
