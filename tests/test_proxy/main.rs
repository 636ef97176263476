//! The proxy that other tests rest on does to statements what those tests believe, on each protocol.
#![cfg(unix)]
#![allow(unreachable_pub, reason = "nothing outside of the tests is reached")]
#![allow(clippy::duplicate_mod, reason = "the same tests for two protocols")]

mod mysql;
mod postgres;
mod redis;
#[path = "../servers/mod.rs"]
mod servers;
