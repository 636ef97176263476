//! The stores for SQLite, through sqlx and the application's own [`SqlitePool`](sqlx::SqlitePool).

pub use crate::store::sqlite::LeaseStore;
