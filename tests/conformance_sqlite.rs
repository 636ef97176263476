//! Both SQLite stores keep the contract, on a file in WAL mode.
#![cfg(all(feature = "sqlite", feature = "conformance"))]

mod sqlite_support;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlite_support::{File, until};
use tokio::time::Instant;
use tower_idempotency::{
    conformance::Harness,
    sqlite::{LeaseStore, TransactionStore},
    store::Store,
};

struct OnFile {
    store: Arc<dyn Store>,
    _file: File,
}

#[async_trait]
impl Harness for OnFile {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// The database's clock is the machine's.
    async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        until(|| async { Instant::now() >= end }).await;
    }
}

async fn lease() -> OnFile {
    let file = File::wal();
    let store = LeaseStore::new(file.pool(4).await);
    store.migrate().await.expect("a table");
    OnFile {
        store: Arc::new(store),
        _file: file,
    }
}

async fn transaction() -> OnFile {
    let file = File::wal();
    let store = TransactionStore::new(file.pool(4).await);
    store.migrate().await.expect("a table");
    OnFile {
        store: Arc::new(store),
        _file: file,
    }
}

async fn transaction_on_one_connection() -> OnFile {
    let file = File::wal();
    let store = TransactionStore::new(file.pool(1).await);
    store.migrate().await.expect("a table");
    OnFile {
        store: Arc::new(store),
        _file: file,
    }
}

mod lease_store {
    tower_idempotency::conformance_tests!(lease: super::lease);
}

mod transaction_store {
    tower_idempotency::conformance_tests!(transaction: super::transaction);
}

mod transaction_store_on_one_connection {
    tower_idempotency::conformance_tests!(transaction: super::transaction_on_one_connection);
}
