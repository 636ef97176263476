//! On Redis, whose store shares one connection among all calls.

pub use tower_idempotency::RedisStore as Pool;
use tower_idempotency::store::StoreKind;

use self::operating::Operation;
use crate::servers::DURABLE;
pub use crate::servers::{Redis as Server, redis as shared_server};

#[path = "app.rs"]
mod app;
#[path = "claims.rs"]
mod claims;
mod connection;
#[path = "hanging.rs"]
mod hanging;
mod keys;
#[path = "lease.rs"]
mod lease;
#[path = "operating.rs"]
mod operating;
#[path = "outages.rs"]
mod outages;
mod pool;
#[path = "unprotected.rs"]
mod unprotected;
mod world;

pub const KINDS: &[StoreKind] = &[StoreKind::Lease];

/// It is replaced when it is lost, and what was sent on it is sent once more.
pub const ONE_CONNECTION: bool = true;

pub fn start_server() -> Option<Server> {
    Server::start_with(&DURABLE)
}

/// Whether it pings before it does what it isn't to do twice. Nothing is sent for a purge.
fn looks_first(_: StoreKind, operation: Operation) -> bool {
    operation == Operation::Forget
}

/// Parts of the commands that a store sends.
mod statement {
    use std::sync::LazyLock;

    /// A script is called by its digest, which the server knows by then.
    macro_rules! call {
        ($($part:literal),+) => {{
            static DIGEST: LazyLock<String> = LazyLock::new(|| {
                let text = concat!($(
                    include_str!(concat!("../../src/store/redis/scripts/", $part, ".lua"))
                ),+);
                redis::Script::new(text).get_hash().to_owned()
            });
            &DIGEST
        }};
    }

    pub fn reserve() -> &'static str {
        call!("record", "reserve")
    }

    pub fn renew() -> &'static str {
        call!("record", "head", "renew")
    }

    pub fn settle() -> &'static str {
        call!("record", "settle")
    }

    pub fn release() -> &'static str {
        call!("record", "head", "release")
    }

    pub const CHECK: &str = "CONFIG GET";
    /// Nothing is committed.
    pub const COMMIT: &str = "";
}
