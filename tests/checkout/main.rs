//! The checkout example in a real browser: whatever happens to the page, a purchase is charged once.
#![cfg(unix)]
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what is missing fails the test; clippy takes the modules of a test for production code"
)]
#![allow(
    clippy::duplicate_mod,
    reason = "the servers and the proxy find ports in the same way"
)]

mod answers;
mod browser;
mod checkout;
#[path = "../http_proxy/mod.rs"]
mod http_proxy;
mod network;
mod origins;
mod picture;
mod purchases;
#[path = "../server/mod.rs"]
mod server;
#[path = "../servers/mod.rs"]
mod servers;
mod sessions;
mod shop;
mod tabs;
