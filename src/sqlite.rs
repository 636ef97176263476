//! The stores for SQLite, through sqlx and the application's own [`SqlitePool`](sqlx::SqlitePool).
//!
//! [`TransactionStore`] makes the handler's writes, the key and the saved response one transaction: exactly once for all that is
//! written through it, at the price that keyed requests run one after the other. [`LeaseStore`] claims first and saves the
//! response afterwards: handlers run side by side, and a crash in mid-run leaves an unknown outcome.

pub use crate::store::sqlite::{LeaseStore, TransactionStore};
