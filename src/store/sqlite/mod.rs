//! SQLite through sqlx and the user's own pool.

mod busy;
mod clock;
mod commit;
mod error;
mod lease;
mod lease_sql;
mod listing;
#[cfg(test)]
mod query_plans;
mod schema;
mod transaction;
mod transaction_sql;
mod upkeep;

pub(crate) use self::error::is_conflict;
pub use self::{lease::LeaseStore, transaction::TransactionStore};
