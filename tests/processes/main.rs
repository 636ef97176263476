//! Two processes over one store: this one, and another one that is this very program once more.
#![cfg(all(
    feature = "memory",
    any(
        feature = "sqlite",
        all(unix, any(feature = "mysql", feature = "postgres", feature = "redis"))
    )
))]
#![allow(unreachable_pub, reason = "nothing outside of the tests is reached")]
#![allow(clippy::panic, reason = "an unknown word fails the test")]

mod other;
#[cfg(all(unix, any(feature = "mysql", feature = "postgres", feature = "redis")))]
#[path = "../servers/mod.rs"]
mod servers;
#[cfg(all(unix, any(feature = "mysql", feature = "postgres", feature = "redis")))]
mod shop;
#[cfg(feature = "sqlite")]
mod sqlite;
#[path = "../support/mod.rs"]
mod support;
#[cfg(all(unix, any(feature = "mysql", feature = "postgres", feature = "redis")))]
mod waiting;
