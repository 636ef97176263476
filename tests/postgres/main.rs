//! `postgres::LeaseStore` and `postgres::TransactionStore` on a real server. Effects are read through a second pool.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod busy;
mod conflicts;
mod dropped;
mod facts;
mod lease;
mod listing;
mod lost;
mod misuse;
mod nested;
mod other_releases;
mod plans;
mod pooler;
#[path = "../postgres_support/mod.rs"]
mod postgres_support;
mod privileges;
mod purging;
mod races;
mod refusals;
mod runbook;
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
        match crate::postgres_support::Database::new().await {
            Some(database) => database,
            None => return,
        }
    };
}
use database;
