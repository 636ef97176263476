//! What the tests of Redis share, and what its store rests on. Effects are read through a stranger's connection.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod cluster_driver;
mod driver;
mod facts;
#[path = "../servers/mod.rs"]
mod servers;
