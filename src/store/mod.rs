//! The [`Store`] trait, what it deals in, and the stores of this crate.

mod claim;
mod contract;
#[cfg(feature = "memory")]
pub(crate) mod memory;
mod record;
mod terms;

pub use self::{
    claim::{Claim, Nonce},
    contract::{Store, StoreKind},
    record::{Record, RecordState, Reservation},
    terms::{Takeover, Terms},
};
