//! Both SQLite stores keep the contract, on a file in WAL mode.
#![cfg(all(feature = "sqlite", feature = "conformance"))]

mod sqlite_support;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlite_support::{File, until};
use tokio::time::Instant;
use tower_idempotency::{
    conformance::{Harness, ListingHarness},
    sqlite::{LeaseStore, TransactionStore},
    store::{ListRecords, Store},
};

struct OnFile {
    store: Arc<dyn ListRecords>,
    _file: File,
}

#[async_trait]
impl Harness for OnFile {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<dyn ListRecords>::clone(&self.store)
    }

    /// The database's clock is the machine's.
    async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        until(|| async { Instant::now() >= end }).await;
    }
}

impl ListingHarness for OnFile {
    fn listing(&self) -> Arc<dyn ListRecords> {
        Arc::clone(&self.store)
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

mod lease_store_listing {
    tower_idempotency::conformance_tests!(lease_listing: super::lease);
}

mod lease_store_steps {
    tower_idempotency::conformance_tests!(steps: super::lease);
}

mod transaction_store_listing {
    tower_idempotency::conformance_tests!(transaction_listing: super::transaction);
}

mod transaction_store {
    tower_idempotency::conformance_tests!(transaction: super::transaction);
}

mod transaction_store_on_one_connection {
    tower_idempotency::conformance_tests!(transaction: super::transaction_on_one_connection);
}
