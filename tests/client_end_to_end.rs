//! The client layer over the server's: effects are counted.
#![cfg(all(feature = "client", feature = "memory"))]

mod client_support;
mod support;

use std::{convert::Infallible, future::pending, time::Duration};

use bytes::Bytes;
use client_support::delivery;
use http::{Request, Response, StatusCode};
use support::{
    Body, Runs,
    handler::{answering, layer, response},
};
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{
    IdempotencyKey, MemoryStore, RequestBody,
    client::{IdempotentRetryLayer, Resumed},
};

type Sent = RequestBody<Body>;

fn request() -> Request<Body> {
    client_support::post("{\"amount\":100}")
}

/// Takes this long, and counts when it is done.
fn slow(
    runs: &Runs,
    time: Duration,
) -> impl tower::Service<
    Request<RequestBody<Sent>>,
    Response = Response<Body>,
    Error = Infallible,
    Future: Send + 'static,
>
+ Clone
+ Send
+ 'static
+ use<> {
    let runs = runs.clone();
    service_fn(move |_: Request<RequestBody<Sent>>| {
        let runs = runs.clone();
        async move {
            drop(timeout(time, pending::<()>()).await);
            let run = runs.add();
            Ok(response(StatusCode::CREATED, format!("run {run}")))
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_first_attempt_times_out_ends_as_the_success_that_it_was() {
    let runs = Runs::default();
    let handler = slow(&runs, Duration::from_millis(300));
    let server = layer(MemoryStore::new()).require_key().layer(handler);
    let client = IdempotentRetryLayer::new()
        .with_attempt_timeout(Duration::from_millis(100))
        .layer(server);

    let response = client.oneshot(request()).await.expect("a response");

    assert_eq!(response.status(), StatusCode::CREATED);
    let delivery = delivery(&response).clone();
    assert!(delivery.is_replay());
    assert!(
        delivery.attempts() > 2,
        "one that was told to wait among them"
    );
    assert!(!delivery.outcome_is_unknown());
    assert_eq!(client_support::text(response).await, "run 1");
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_gives_up_can_be_resumed_with_its_key() {
    let runs = Runs::default();
    let handler = slow(&runs, Duration::from_secs(20));
    let server = layer(MemoryStore::new()).layer(handler);
    let client = IdempotentRetryLayer::new()
        .with_attempt_timeout(Duration::from_secs(2))
        .with_deadline(Duration::from_secs(3))
        .layer(server);

    let given_up = client.clone().oneshot(request()).await;
    let key: IdempotencyKey = match given_up {
        Ok(response) => {
            assert!(delivery(&response).outcome_is_unknown());
            delivery(&response).key().clone()
        }
        Err(error) => {
            assert!(error.outcome_is_unknown());
            error.key().expect("a key").clone()
        }
    };
    drop(timeout(Duration::from_secs(60), pending::<()>()).await);
    let mut again = request();
    again.extensions_mut().insert(key);
    again
        .extensions_mut()
        .insert(Resumed::after(Duration::from_secs(63)));
    let response = client.oneshot(again).await.expect("a response");

    assert!(delivery(&response).is_replay());
    assert!(!delivery(&response).outcome_is_unknown());
    assert_eq!((response.status(), runs.count()), (StatusCode::CREATED, 1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_says_not_now_is_not_stored_and_the_retry_runs() {
    for status in [429, 425] {
        let runs = Runs::default();
        let handler = answering(&runs, move |run, _, _: Bytes| match run {
            1 => response(StatusCode::from_u16(status).expect("a status"), "later"),
            _ => response(StatusCode::CREATED, "done"),
        });
        let server = layer(MemoryStore::new()).layer(handler);
        let client = IdempotentRetryLayer::new().layer(server);

        let response = client.oneshot(request()).await.expect("a response");

        assert_eq!(response.status(), StatusCode::CREATED);
        assert!(!delivery(&response).is_replay());
        assert_eq!((delivery(&response).attempts(), runs.count()), (2, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_of_unknown_outcome_ends_as_unknown_and_not_as_failed() {
    let runs = Runs::default();
    let handler = answering(&runs, |_, _, _: Bytes| {
        response(StatusCode::INTERNAL_SERVER_ERROR, "half done")
    });
    let server = layer(MemoryStore::new()).layer(handler);
    let client = IdempotentRetryLayer::new().layer(server);

    let response = client.oneshot(request()).await.expect("a response");

    // The second attempt: a lease store can't tell what the first one did.
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert_eq!((delivery(&response).attempts(), runs.count()), (2, 1));
    assert!(delivery(&response).outcome_is_unknown());
    assert_eq!(delivery(&response).gave_up(), None);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final_and_known() {
    let runs = Runs::default();
    let handler = answering(&runs, |_, _, _: Bytes| {
        response(StatusCode::CREATED, "done")
    });
    let server = layer(MemoryStore::new()).layer(handler);
    let client = IdempotentRetryLayer::new().layer(server);
    let key = IdempotencyKey::derive("charge", "order 17");
    let mut first = request();
    first.extensions_mut().insert(key.clone());
    let mut other = client_support::post("{\"amount\":101}");
    other.extensions_mut().insert(key);

    client.clone().oneshot(first).await.expect("a response");
    let reused = client.oneshot(other).await.expect("a response");

    assert_eq!(reused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(delivery(&reused).attempts(), 1);
    assert!(!delivery(&reused).outcome_is_unknown());
    assert_eq!(runs.count(), 1);
}
