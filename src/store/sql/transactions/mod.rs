//! The transaction store that all SQL backends share; a [`TransactionDialect`] is what differs.

mod dialect;
mod ending;
mod engine;

#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(crate) use self::dialect::RELEASE_SAVEPOINT;
#[cfg(any(test, feature = "postgres", feature = "mysql"))]
pub(crate) use self::dialect::SAVEPOINT;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use self::ending::end;
#[cfg(feature = "postgres")]
pub(crate) use self::ending::end_uncounted;
pub(crate) use self::{
    dialect::{NESTED, NotCommitted, Opened, ROLLBACK_TO_SAVEPOINT, TransactionDialect},
    engine::Transactions,
};
