//! On MariaDB, or MySQL.

pub use sqlx::{MySql as Backend, MySqlPool as Pool, mysql::MySqlPoolOptions as PoolOptions};
pub use tower_idempotency::mysql::{LeaseStore, TransactionStore};
use tower_idempotency::store::StoreKind;

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
#[path = "silence.rs"]
mod silence;
#[path = "transaction.rs"]
mod transaction;
#[path = "world.rs"]
mod world;

/// It undoes the whole transaction, which the store finds out by itself.
const DEADLOCK_IS_FOUND_OUT: bool = true;

/// Whether it reads before it deletes: others' locks aren't waited for.
fn looks_first(kind: StoreKind, operation: Operation) -> bool {
    match operation {
        Operation::Forget => kind == StoreKind::Transaction,
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
    pub const COMMIT: &str = "COMMIT";
    pub const UNDO: &str = "ROLLBACK TO SAVEPOINT tower_idempotency";
    /// The undo is it.
    pub const ROLLBACK: &str = "";
    pub const VERIFICATION: &str = "LOCK IN SHARE MODE";

    pub const RESERVE: &str = "ON DUPLICATE KEY UPDATE";
    pub const RENEW: &str = "(expires - lease_end)";
    pub const SETTLE: &str = "fence = GREATEST(fence, ?), state";
    pub const RELEASE: &str = "SET lease_end";
}
