//! Stores on the server of the test binary, and short names for what they are called with.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

#[path = "../store_support/mod.rs"]
mod store_support;

use redis::Client;
pub(crate) use store_support::*;
use tower_idempotency::{
    RecordKey, RedisStore,
    store::{Takeover, Terms},
};

use crate::servers::Redis;

pub(crate) fn store_at(url: &str) -> RedisStore {
    RedisStore::new(Client::open(url).unwrap())
}

/// The name of the key's record.
pub(crate) fn name_of(key: &RecordKey) -> String {
    let digits = key.as_bytes().map(|byte| format!("{byte:02x}")).concat();
    format!("tower-idempotency:{{{digits}}}")
}

/// The key's record as it is stored; empty if there is none.
pub(crate) fn stored(server: &Redis, key: &RecordKey) -> Vec<u8> {
    server
        .run::<Option<Vec<u8>>>(&["GET", &name_of(key)])
        .unwrap()
        .unwrap_or_default()
}

/// What the key's record has left to live, in milliseconds.
pub(crate) fn left(server: &Redis, key: &RecordKey) -> i64 {
    server.run(&["PTTL", &name_of(key)]).unwrap()
}

pub(crate) fn run_again(terms: Terms) -> Terms {
    terms.with_takeover(Takeover::RunAgain)
}
