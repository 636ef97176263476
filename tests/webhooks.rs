//! Webhooks whose event id is in the body: no event is lost by being called a duplicate too early.
#![cfg(feature = "memory")]
mod support;

use std::time::Duration;

use http::{Request, StatusCode};
use support::{
    Body,
    faulty::{Call, Fault, FaultyStore, pass},
    probe::{Probe, spawn_send},
    send,
};
use tower::Layer;
use tower_idempotency::{
    IdempotencyLayer, KeyBy, MemoryStore, RejectionKind, ScopeBy, StoreErrorKind, store::Takeover,
};

const LEASE: Duration = Duration::from_secs(9);
const UNAVAILABLE: Fault = Fault::Fails(StoreErrorKind::Unavailable);

/// Each delivery of an event has another body, and no header tells of it.
fn delivery(number: u32) -> Request<Body> {
    Request::post("/webhooks")
        .body(Body::from(format!("evt_1 delivery={number}")))
        .expect("a valid request")
}

fn event_id() -> KeyBy {
    KeyBy::body(|_, body| {
        let text = std::str::from_utf8(body).ok()?;
        Some(text.split_once(' ')?.0.to_owned())
    })
}

#[tokio::test(start_paused = true)]
async fn an_event_is_delivered_again_until_a_worker_has_lived_to_the_end_of_it() {
    let store = FaultyStore::new(MemoryStore::new());
    let probe = Probe::new().shut();
    // A worker that dies: the run ends with its caller, and the store doesn't hear of it.
    let layer = IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
        .require_key()
        .with_key(event_id())
        .with_lease(LEASE)
        .with_takeover(Takeover::RunAgain)
        .with_detached(false);
    let service = layer.layer(probe.service::<Body>());

    store.then(Call::Reserve, UNAVAILABLE);
    let unheard = send(&service, delivery(1)).await;
    assert_eq!(unheard.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(unheard.rejection(), Some(RejectionKind::StoreUnavailable));
    assert_eq!(probe.runs(), 0);

    store.then(Call::Abandon, UNAVAILABLE);
    let worker = spawn_send(&service, delivery(2));
    probe.started(1).await;
    let during = send(&service, delivery(3)).await;
    assert_eq!(during.status(), StatusCode::CONFLICT);
    assert_eq!(during.rejection(), Some(RejectionKind::InFlight));
    worker.abort();
    assert!(worker.await.expect_err("it died").is_cancelled());
    probe.open();
    pass(LEASE - Duration::from_millis(1)).await;
    let blocked = send(&service, delivery(4)).await;
    assert_eq!(blocked.rejection(), Some(RejectionKind::InFlight));
    assert_eq!((probe.runs(), probe.effects()), (1, 0));

    pass(Duration::from_millis(1)).await;
    let again = send(&service, delivery(5)).await;
    assert_eq!((again.text(), again.is_replay()), ("run 2", false));
    assert_eq!(probe.context(2).attempt(), 2);
    let done = send(&service, delivery(6)).await;
    assert_eq!((done.text(), done.is_replay()), ("run 2", true));
    assert_eq!((probe.runs(), probe.effects()), (2, 1));
}
