//! Steps: a run that takes over goes on after what the one before it has noted.
#![cfg(feature = "memory")]
#![allow(unreachable_pub, reason = "nothing outside of the tests is reached")]
#![allow(
    clippy::panic,
    reason = "clippy takes the modules of a test for production code"
)]

mod app;
mod bounds;
mod failures;
mod late;
#[path = "../support/mod.rs"]
mod support;
mod takeovers;
