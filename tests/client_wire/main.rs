//! The client's layer over real connections: a server, a proxy that lets requests and answers fail, and the clients that teams have.
#![cfg(unix)]
#![allow(unreachable_pub, reason = "nothing outside of the tests is reached")]
#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what is missing fails the test; clippy takes the modules of a test for production code"
)]

mod bodies;
mod clients;
mod faults;
mod http2;
#[path = "../http_proxy/mod.rs"]
mod http_proxy;
mod late;
mod redirects;
mod resumed;
#[path = "../shop/mod.rs"]
mod shop;
mod world;
