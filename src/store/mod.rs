//! The [`Store`] trait, what it deals in, and the stores of this crate.

mod claim;
mod contract;
mod listing;
#[cfg(feature = "memory")]
pub(crate) mod memory;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(any(feature = "redis", feature = "_sql"))]
mod notes;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod record;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "_sql")]
pub(crate) mod sql;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
mod steps;
mod terms;

#[cfg(any(feature = "postgres", feature = "mysql"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "postgres", feature = "mysql"))))]
pub use self::sql::{InvalidTableName, TableName};
pub use self::{
    claim::{Claim, Nonce},
    contract::{Store, StoreKind},
    listing::{Counts, Cursor, ListRecords, Listed, Page},
    record::{Record, RecordState, Reservation},
    steps::{Note, Steps},
    terms::{Takeover, Terms},
};
