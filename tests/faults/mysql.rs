//! On MariaDB, or MySQL.

pub use sqlx::{MySql as Backend, MySqlPool as Pool, mysql::MySqlPoolOptions as PoolOptions};
pub use tower_idempotency::mysql::{LeaseStore, TransactionStore};
use tower_idempotency::store::StoreKind::{self, Lease, Transaction};

use self::operating::Operation;
pub use crate::servers::{MariaDb as Server, mariadb as shared_server};

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
#[path = "lock_waits.rs"]
mod lock_waits;
#[path = "operating.rs"]
mod operating;
#[path = "outages.rs"]
mod outages;
#[path = "patterns.rs"]
mod patterns;
#[path = "pool.rs"]
mod pool;
#[path = "silence.rs"]
mod silence;
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

/// It undoes the whole transaction, which the store finds out by itself.
const DEADLOCK_IS_FOUND_OUT: bool = true;

/// Whether it reads before it deletes: others' locks aren't waited for.
fn looks_first(kind: StoreKind, operation: Operation) -> bool {
    match operation {
        Operation::Forget => kind == Transaction,
        Operation::Purge => true,
        Operation::Inspect | Operation::Ping => false,
    }
}

/// Parts of the statements that a store sends, in the order in which it sends them.
mod statement {
    pub const OPENING: &str = "START TRANSACTION";
    pub const OPENING_2: &str = "SET @tower_idempotency_began";
    pub const REPLAY_2: &str = "IF(response IS NULL";
    pub const RECORD: &str = "fence = GREATEST(fence, ?), expires";
    /// The verification commits as well, what a stranger may have left.
    pub const COMMIT: &str = "RELEASE SAVEPOINT tower_idempotency; COMMIT";
    pub const UNDO: &str = "ROLLBACK TO SAVEPOINT tower_idempotency";
    /// The undo is it.
    pub const ROLLBACK: &str = "";
    pub const LOOKED_UP: &str = REPLAY_2;
    pub const VERIFICATION: &str = "LOCK IN SHARE MODE";

    /// Nothing of the server is checked.
    pub const CHECK: &str = "";
    pub fn reserve() -> &'static str {
        "ON DUPLICATE KEY UPDATE"
    }
    pub fn renew() -> &'static str {
        "(expires - lease_end)"
    }
    pub fn settle() -> &'static str {
        "fence = GREATEST(fence, ?), state"
    }
    pub fn release() -> &'static str {
        "SET steps = NULL, lease_end"
    }
}
