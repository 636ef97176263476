//! The servers that other tests rest on live and end as those tests believe.
#![cfg(unix)]
#![allow(unreachable_pub, reason = "nothing outside of the tests is reached")]
#![allow(clippy::duplicate_mod, reason = "the same tests for two servers")]

mod ends;
mod mysql;
mod pgbouncer;
mod ports;
mod postgres;
mod redis;
mod redis_cluster;
#[path = "../servers/mod.rs"]
mod servers;
