//! The stores for MySQL and MariaDB, through sqlx and the application's own [`MySqlPool`](sqlx::MySqlPool).
//!
//! [`TransactionStore`] makes the handler's writes, the key and the saved response one transaction: exactly once for all that is
//! written through it. [`LeaseStore`] claims first and saves the response afterwards: a crash in mid-run leaves an unknown outcome.
//!
//! They were tested on MariaDB only; no MySQL server could be run. What MySQL lacks is written for it, and the repository's tests run
//! against the server that `TEST_MYSQL_URL` names.

pub use crate::store::mysql::{LeaseStore, TransactionStore};
