//! What a client gets when the way to the database fails, and what is in the database then: the layer, a store, and a pool that
//! leads through a proxy with faults.
//!
//! The promises are the tables in `transaction.rs` and `lease.rs`, a line for each statement and fault. What doesn't fit into a
//! table is in the other files. All of it runs on each backend.
#![cfg(all(
    unix,
    feature = "memory",
    any(feature = "mysql", feature = "postgres", feature = "redis")
))]
#![allow(unreachable_pub, reason = "nothing outside of the tests is reached")]
#![allow(clippy::duplicate_mod, reason = "the same tests for each backend")]
#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "clippy takes the modules of a test for production code"
)]

#[cfg(feature = "mysql")]
mod mysql;
mod network;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[path = "../servers/mod.rs"]
mod servers;
#[path = "../support/mod.rs"]
mod support;
mod table;
