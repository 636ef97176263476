//! The Redis store keeps the contract.
#![cfg(all(unix, feature = "redis", feature = "conformance"))]

mod store_support;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use store_support::until;
use tokio::time::Instant;
use tower_idempotency::{RedisStore, conformance::Harness, store::Store};

struct OnServer(Arc<dyn Store>);

#[async_trait]
impl Harness for OnServer {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0)
    }

    async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        until(|| async { Instant::now() >= end }).await;
    }
}

async fn alone() -> OnServer {
    let client = redis::Client::open("redis://127.0.0.1:7399").expect("a URL");
    OnServer(Arc::new(RedisStore::new(&client)))
}

mod on_a_server {
    tower_idempotency::conformance_tests!(lease: super::alone);
}
