//! SQLite through sqlx and the user's own pool.

mod busy;
mod clock;
mod error;
mod lease;
mod lease_sql;
mod schema;
mod upkeep;

pub use self::lease::LeaseStore;
