//! `kill -9` at random moments while clients charge and retry: each key is charged once, and answered once and for all;
//! on a lease store, as its takeover policy promises.
//!
//! `KILLS=100 cargo test --all-features --test kill -- --nocapture` makes a long run of it and tells the numbers, after
//! `cargo build --all-features --example payments`.
#![cfg(unix)]
#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what is missing fails the test; clippy takes the modules of a test for production code"
)]

mod blocked;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod frozen;
mod load;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod networked;
#[path = "../payments_app/mod.rs"]
mod payments_app;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod runs;
#[path = "../server/mod.rs"]
mod server;
#[path = "../servers/mod.rs"]
mod servers;
mod sqlite;
