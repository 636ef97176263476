//! The [`Store`] trait, what it deals in, and the stores of this crate.

mod claim;
mod contract;
#[cfg(feature = "memory")]
pub(crate) mod memory;
mod record;
#[cfg(feature = "sqlite")]
pub(crate) mod sql;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
mod terms;

pub use self::{
    claim::{Claim, Nonce},
    contract::{Store, StoreKind},
    record::{Record, RecordState, Reservation},
    terms::{Takeover, Terms},
};
