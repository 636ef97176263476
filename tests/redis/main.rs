//! The Redis store: what is particular to it, and what it rests on, on real servers. The contract is in `conformance_redis`.
//!
//! Nothing is tested where there is no server.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking; clippy takes the modules of a test for production code"
)]

mod cluster;
mod cluster_driver;
mod connections;
mod driver;
mod eviction;
mod facts;
mod full;
mod listing;
mod record;
#[path = "../redis_support/mod.rs"]
mod redis_support;
mod refusals;
mod relay;
mod replicas;
mod scripts;
#[path = "../servers/mod.rs"]
mod servers;
mod steps;
mod storms;
#[path = "../support/mod.rs"]
mod support;
