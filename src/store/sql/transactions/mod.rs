//! The transaction store that all SQL backends share; a [`TransactionDialect`] is what differs.

mod dialect;
mod ending;
mod engine;

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use self::ending::end_uncounted;
pub(crate) use self::{
    dialect::{
        NESTED, NotCommitted, Opened, RELEASE_SAVEPOINT, ROLLBACK_TO_SAVEPOINT, SAVEPOINT,
        TransactionDialect,
    },
    ending::end,
    engine::Transactions,
};
