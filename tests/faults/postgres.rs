//! On Postgres.

pub use sqlx::{PgPool as Pool, Postgres as Backend, postgres::PgPoolOptions as PoolOptions};
pub use tower_idempotency::postgres::{LeaseStore, TransactionStore};
use tower_idempotency::store::StoreKind::{self, Lease, Transaction};

use self::operating::Operation;
pub use crate::servers::{Postgres as Server, postgres as shared_server};

#[path = "app.rs"]
mod app;
#[path = "claims.rs"]
mod claims;
#[path = "commit.rs"]
mod commit;
#[path = "conflicts.rs"]
mod conflicts;
#[path = "hanging.rs"]
mod hanging;
#[path = "late_grants.rs"]
mod late_grants;
#[path = "lease.rs"]
mod lease;
#[path = "opening.rs"]
mod opening;
#[path = "operating.rs"]
mod operating;
#[path = "outages.rs"]
mod outages;
#[path = "patterns.rs"]
mod patterns;
#[path = "pgbouncer.rs"]
mod pgbouncer;
#[path = "pool.rs"]
mod pool;
#[path = "silence.rs"]
mod silence;
#[path = "skew.rs"]
mod skew;
#[path = "transaction.rs"]
mod transaction;
#[path = "unprotected.rs"]
mod unprotected;
#[path = "world.rs"]
mod world;

pub const KINDS: &[StoreKind] = &[Lease, Transaction];

/// A pool has several, and a statement that was cut off has failed.
pub const ONE_CONNECTION: bool = false;

pub fn start_server() -> Option<Server> {
    Server::start()
}

/// It fails the transaction, and only the handler knows by what.
const DEADLOCK_IS_FOUND_OUT: bool = false;

/// One statement does both.
fn looks_first(_: StoreKind, _: Operation) -> bool {
    false
}

/// Parts of the statements that a store sends, in the order in which it sends them.
mod statement {
    pub const OPENING: &str = "pg_try_advisory_xact_lock";
    pub const OPENING_2: &str = "current_setting('transaction_isolation')";
    pub const REPLAY_2: &str = OPENING_2;
    pub const RECORD: &str = "INSERT INTO \"tower_idempotency_transactions\"";
    pub const COMMIT: &str = "COMMIT";
    pub const UNDO: &str = "ROLLBACK TO SAVEPOINT tower_idempotency";
    pub const ROLLBACK: &str = "ROLLBACK";
    pub const LOOKED_UP: &str = "AS is_own";
    pub const VERIFICATION: &str = "lock_timeout";

    /// Nothing of the server is checked.
    pub const CHECK: &str = "";
    pub fn reserve() -> &'static str {
        "claimed AS ("
    }
    pub fn renew() -> &'static str {
        "(expires - lease_end)"
    }
    pub fn settle() -> &'static str {
        "response = excluded.response"
    }
    pub fn release() -> &'static str {
        "SET steps = NULL, lease_end = 0"
    }
}
