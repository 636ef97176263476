//! Private servers for tests: databases, what stands between a pool and a server (PgBouncer, a proxy with faults), Prometheus, and
//! Chromium behind its driver.
//!
//! [`postgres()`], [`mariadb()`], [`redis()`] and [`valkey()`] give the one server of this test binary, started at first use. It belongs to all of
//! its tests at once: each takes a database of its own ([`Postgres::database`]). A test that freezes, kills or configures
//! a server starts a private one ([`Postgres::start`]), which goes when it is dropped. `None` says that there is no such
//! server on this machine: the test says so and passes, except in continuous integration, where that is a panic.
//!
//! The servers listen on loopback only, run as a user other than root, and trust everybody. They end when this process
//! ends, however that happens: see [`process`].
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

mod chromium;
mod external;
#[cfg(feature = "mysql")]
mod mariadb;
#[cfg(feature = "postgres")]
mod pgbouncer;
mod place;
mod port;
#[cfg(feature = "postgres")]
mod postgres;
mod process;
mod prometheus;
mod proxy;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_cluster;
mod server;
mod url;

pub use chromium::{ARGUMENTS, Chromium, chromium};
pub use external::tell;
#[cfg(feature = "mysql")]
pub use mariadb::{MariaDb, mariadb};
#[cfg(feature = "postgres")]
pub use pgbouncer::PgBouncer;
pub use port::Port;
#[cfg(feature = "postgres")]
pub use postgres::{Postgres, postgres};
pub use prometheus::Prometheus;
pub use proxy::{Fault, Proxy, Rule, Strikes};
#[cfg(feature = "redis")]
pub use redis::{DURABLE, Redis, redis, valkey};
#[cfg(feature = "redis")]
pub use redis_cluster::RedisCluster;
pub use server::Server;
