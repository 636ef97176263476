//! The protocol: what happens to one keyed request from its head to its answer.

mod background;
mod detached;
mod guard;
mod handler;
mod judge;
mod limit;
mod notes;
mod protect;
mod renewal;
mod report;
mod reserve;
mod retry;
mod run;
mod settle;
mod span;
mod stands;
mod store_call;
mod subject;
mod unwind;
mod wait;
mod waiters;

pub use self::detached::DetachedRun;
pub(crate) use self::{
    guard::{Guard, Shared},
    notes::{Noted, Notes},
    protect::protect,
    unwind::{Panicked, catch},
};
