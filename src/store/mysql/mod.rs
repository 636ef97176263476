//! MySQL and MariaDB through sqlx and the user's own pool.

#[cfg(all(test, unix, feature = "conformance"))]
mod as_mysql;
mod database;
mod dialect;
mod error;
mod lease;
mod lease_sql;
mod listing;
#[cfg(all(test, unix, feature = "conformance"))]
mod query_plans;
mod schema;
#[cfg(all(test, unix, feature = "conformance"))]
#[path = "../../../tests/servers/mod.rs"]
mod servers;
mod statement;
mod transaction;
mod transaction_sql;
mod upkeep;

pub(crate) use self::error::is_conflict;
pub use self::{lease::LeaseStore, transaction::TransactionStore};
