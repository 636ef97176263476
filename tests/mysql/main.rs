//! `mysql::LeaseStore` and `mysql::TransactionStore` on a real server. Effects are read through a stranger's connection.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod dropped;
mod errors;
mod facts;
mod forgetting;
mod lease;
mod misuse;
#[path = "../mysql_support/mod.rs"]
mod mysql_support;
mod races;
mod refusals;
mod schema;
#[path = "../servers/mod.rs"]
mod servers;
mod sessions;
mod strangers;
mod transaction;
mod trips;

/// The database of a test, which passes where there is no server.
macro_rules! database {
    () => {
        match crate::mysql_support::Database::new().await {
            Some(database) => database,
            None => return,
        }
    };
}
use database;
