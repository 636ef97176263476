//! The stores for Postgres, through sqlx and the application's own [`PgPool`](sqlx::PgPool).

pub use crate::store::postgres::{LeaseStore, TransactionStore};
