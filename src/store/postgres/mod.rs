//! Postgres through sqlx and the user's own pool.

mod bytea;
mod database;
mod dialect;
mod error;
mod lease;
mod lease_sql;
mod listing;
mod opening;
mod schema;
mod statement;
mod transaction;
mod transaction_sql;
mod upkeep;

pub(crate) use self::error::is_conflict;
pub use self::{lease::LeaseStore, transaction::TransactionStore};
