//! On Postgres.

pub use sqlx::{PgPool as Pool, Postgres as Backend, postgres::PgPoolOptions as PoolOptions};
pub use tower_idempotency::postgres::{LeaseStore, TransactionStore};
use tower_idempotency::store::StoreKind;

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
#[path = "silence.rs"]
mod silence;
#[path = "skew.rs"]
mod skew;
#[path = "transaction.rs"]
mod transaction;
#[path = "world.rs"]
mod world;

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
    pub const VERIFICATION: &str = "lock_timeout";

    pub const RESERVE: &str = "claimed AS (";
    pub const RENEW: &str = "(expires - lease_end)";
    pub const SETTLE: &str = "response = excluded.response";
    pub const RELEASE: &str = "SET lease_end = now, expires = now\n";
}
