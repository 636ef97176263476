//! A proxy between an HTTP/1.1 client and its server that keeps what the client sent, and lets chosen requests fail.
//!
//! It runs on the runtime of the test, and ends with it.
//!
//! ```text
//! let proxy = Proxy::start(server.address).await;
//! proxy.script("POST /charges", [Fault::LoseAnswer, Fault::Pass]);
//! // … a client that sends its charge to `proxy.address()`, and again after the connection was closed …
//! assert_eq!(proxy.requests("POST /charges").len(), 2);
//! ```
//!
//! What it doesn't speak: TLS, HTTP/2, upgrades, pipelining, and `Expect: 100-continue`.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each test binary uses some of it"
)]
#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what is missing fails the test; clippy takes the modules of a test for production code"
)]

mod fault;
mod link;
mod message;
#[path = "../servers/port.rs"]
mod port;
mod proxy;
mod request;

pub use fault::Fault;
pub use proxy::Proxy;
pub use request::Request;
