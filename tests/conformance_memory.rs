//! The memory store keeps the contract, by itself and behind the pointers that forward to it.
#![cfg(all(feature = "memory", feature = "conformance"))]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::task::JoinSet;
use tower_idempotency::{
    MemoryStore,
    conformance::{self, Harness, ListingHarness},
    store::{ListRecords, Store},
};

struct Paused(Arc<dyn ListRecords>);

#[async_trait]
impl Harness for Paused {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<dyn ListRecords>::clone(&self.0)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

impl ListingHarness for Paused {
    fn listing(&self) -> Arc<dyn ListRecords> {
        Arc::clone(&self.0)
    }
}

async fn bare() -> Paused {
    Paused(Arc::new(MemoryStore::new()))
}

tower_idempotency::conformance_tests!(
    #[tokio::test(start_paused = true)]
    lease: bare
);
tower_idempotency::conformance_tests!(
    #[tokio::test(start_paused = true)]
    lease_listing: bare
);
tower_idempotency::conformance_tests!(
    #[tokio::test(start_paused = true)]
    steps: bare
);

mod through_arc_and_box {
    use super::*;

    async fn wrapped() -> Paused {
        let boxed: Box<dyn ListRecords> = Box::new(MemoryStore::new());
        let shared: Arc<dyn ListRecords> = Arc::new(boxed);
        Paused(Arc::new(shared))
    }

    tower_idempotency::conformance_tests!(
        #[tokio::test(start_paused = true)]
        lease: wrapped
    );
    tower_idempotency::conformance_tests!(
        #[tokio::test(start_paused = true)]
        lease_listing: wrapped
    );
    tower_idempotency::conformance_tests!(
        #[tokio::test(start_paused = true)]
        steps: wrapped
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_claimers_acquires_on_several_threads() {
    for _ in 0..20 {
        conformance::reserving::one_of_many_claimers_acquires(&bare().await).await;
    }
}

/// The clock moves under every check by what all of them let pass, which is less than the time they don't want to see the end of.
#[tokio::test(start_paused = true)]
async fn all_clauses_can_share_one_store_at_once() {
    macro_rules! spawn {
        ($group:ident::$clause:ident, ($checks:ident, $store:ident)) => {
            let harness = Paused(Arc::clone(&$store));
            $checks.spawn(async move { conformance::$group::$clause(&harness).await });
        };
    }
    let store: Arc<dyn ListRecords> = Arc::new(MemoryStore::new());
    let mut checks = JoinSet::new();
    tower_idempotency::__conformance_clauses!(lease, [spawn](checks, store));
    tower_idempotency::__conformance_clauses!(lease_listing, [spawn](checks, store));
    tower_idempotency::__conformance_clauses!(steps, [spawn](checks, store));
    checks.join_all().await;
}
