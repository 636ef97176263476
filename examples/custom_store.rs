//! A store of one's own, a map behind a mutex, and the proof that it keeps the contract: at the end of this file.
//!
//! Run with `cargo run --example custom_store --features conformance`
//!
//! ```text
//! 201 Created: order 1
//! 201 Created: order 1 (replayed)
//! ```
//!
//! Check it with `cargo test --example custom_store --features conformance`
//!
//! ```text
//! test the_contract::a_completed_key_is_replayed ... ok
//! test the_contract::a_lapsed_claim_may_renew ... ok
//! …
//! test result: ok. 38 passed; 0 failed
//! ```

#[path = "custom_store/entry.rs"]
mod entry;
#[path = "custom_store/reserve.rs"]
mod reserve;
#[path = "custom_store/store.rs"]
mod store;

use std::{
    error::Error,
    sync::atomic::{AtomicU32, Ordering},
};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{IdempotencyLayer, ScopeBy};

use crate::store::MapStore;

type Body = Full<bytes::Bytes>;

static ORDERS: AtomicU32 = AtomicU32::new(0);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for answer in order_twice().await? {
        println!("{answer}");
    }
    Ok(())
}

async fn order_twice() -> Result<Vec<String>, Box<dyn Error>> {
    let order = service_fn(|_request| {
        let number = ORDERS.fetch_add(1, Ordering::Relaxed) + 1;
        let body = Body::from(format!("order {number}"));
        async { Response::builder().status(StatusCode::CREATED).body(body) }
    });
    let service = IdempotencyLayer::new(MapStore::new(), ScopeBy::single_tenant()).layer(order);

    let key = "d3c1b0a9-8f7e-4d6c-9b5a-493827160504";
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request = Request::post("/orders").header("idempotency-key", key);
        let response = service
            .clone()
            .oneshot(request.body(Body::default())?)
            .await?;
        let (head, body) = response.into_parts();
        let text = body.collect().await?.to_bytes().escape_ascii().to_string();
        let replayed = head.headers.contains_key("idempotent-replayed");
        let mark = if replayed { " (replayed)" } else { "" };
        answers.push(format!("{}: {text}{mark}", head.status));
    }
    Ok(answers)
}

#[cfg(test)]
mod the_contract {
    use std::{sync::Arc, time::Duration};

    use tower_idempotency::{conformance::Harness, store::Store};

    use super::MapStore;

    #[async_trait::async_trait]
    impl Harness for MapStore {
        fn store(&self) -> Arc<dyn Store> {
            Arc::new(self.clone())
        }

        async fn pass(&self, time: Duration) {
            tokio::time::advance(time).await;
        }
    }

    tower_idempotency::conformance_tests!(
        #[tokio::test(start_paused = true)]
        lease: async || MapStore::new()
    );
}

#[cfg(test)]
#[tokio::test]
async fn an_order_is_replayed() {
    let answers = order_twice().await.expect("two answers");
    assert_eq!(
        answers,
        ["201 Created: order 1", "201 Created: order 1 (replayed)"]
    );
}
