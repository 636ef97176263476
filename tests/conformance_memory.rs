//! The memory store keeps the contract, by itself and behind the pointers that forward to it.
#![cfg(all(feature = "memory", feature = "conformance"))]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tower_idempotency::{MemoryStore, conformance::Harness, store::Store};

struct Paused(Arc<dyn Store>);

#[async_trait]
impl Harness for Paused {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

async fn bare() -> Paused {
    Paused(Arc::new(MemoryStore::new()))
}

tower_idempotency::conformance_tests!(
    #[tokio::test(start_paused = true)]
    lease: bare
);

mod through_arc_and_box {
    use super::*;

    async fn wrapped() -> Paused {
        let boxed: Box<dyn Store> = Box::new(MemoryStore::new());
        let shared: Arc<dyn Store> = Arc::new(boxed);
        Paused(Arc::new(shared))
    }

    tower_idempotency::conformance_tests!(
        #[tokio::test(start_paused = true)]
        lease: wrapped
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_claimers_acquires_on_several_threads() {
    for _ in 0..20 {
        tower_idempotency::conformance::reserving::one_of_many_claimers_acquires(&bare().await)
            .await;
    }
}
