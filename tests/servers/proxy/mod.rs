//! A TCP proxy between a pool and its server that knows which SQL, or which command of Redis, a message executes, and lets
//! a chosen one fail.
//!
//! It understands just enough of the protocols of Postgres, MySQL and Redis, without TLS. It has threads of its own, so that it
//! works whatever the tests' runtimes do.
//!
//! ```text
//! let proxy = Proxy::start(&postgres.database().await);
//! let pool = PgPool::connect(proxy.url()).await?;
//! let lost = proxy.inject(Fault::CutAfter.on("COMMIT"));
//! // … a request whose transaction is committed, and whose client is not told …
//! lost.struck(1).await;
//! ```

mod fault;
mod link;
mod listener;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod protocol;
#[cfg(feature = "redis")]
mod redis;
mod state;

pub use fault::{Fault, Rule, Strikes};
pub use listener::Proxy;
