use std::{sync::Arc, time::Duration};

use tokio::sync::OnceCell;
use tower_idempotency::{conformance::Harness, store::Store};

use super::Database;
use crate::store::TransactionStore;

#[async_trait::async_trait]
impl Harness for TransactionStore {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// A store of the test's own, with its own connections, over one table for all.
async fn shared() -> TransactionStore {
    static SHARED: OnceCell<Option<Database>> = OnceCell::const_new();
    let database = SHARED.get_or_init(Database::new).await.as_ref();
    let database = database.expect("Postgres, or TEST_POSTGRES_URL");
    database.store(4).await
}

tower_idempotency::conformance_tests!(transaction: shared);
