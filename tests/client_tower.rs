//! The client layer as a tower service: readiness, permits, cancellation, and redirects inside and outside of it.
#![cfg(feature = "client")]

mod client_support;

use std::{
    convert::Infallible,
    future::{Ready, pending, ready},
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use client_support::{Body, Step, Wire, answer, delivery, post, send, status, with_headers};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, combinators::BoxBody};
use tokio::time::timeout;
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    buffer::Buffer,
    limit::ConcurrencyLimit,
    load_shed::{LoadShed, error::Overloaded},
    util::BoxCloneSyncService,
};
use tower_http::follow_redirect::{
    FollowRedirectLayer,
    policy::{And, CloneBodyFn, PolicyExt, Standard, clone_body_fn},
};
use tower_idempotency::{
    IdempotencyKey, RequestBody,
    client::{ErrorKind, IdempotentRetryLayer},
};
use tower_test::mock;

/// One poll of a future.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_a_service_that_was_polled_ready() {
    // The wire panics where it is called unready, and clones are.
    let wire = Wire::new([Step::Fail, answer(503), answer(201), Step::Hang]);
    let mut service = IdempotentRetryLayer::new().layer(wire.clone());
    for attempts in [3, 2] {
        let ready = ServiceExt::<Request<Body>>::ready(&mut service).await;
        let response = ready.expect("ready").call(post("{}")).await;
        let response = response.expect("a response");
        assert_eq!(delivery(&response).attempts(), attempts);
    }
    let mut get = post("");
    *get.method_mut() = http::Method::GET;
    let ready = ServiceExt::<Request<Body>>::ready(&mut service).await;
    let response = ready.expect("ready").call(get).await;
    response.expect("a response");
    assert_eq!(wire.count(), 6);
}

#[tokio::test(start_paused = true)]
async fn it_is_ready_when_the_wrapped_service_is_and_readies_it_for_each_attempt() {
    let (mock, mut handle) = mock::pair::<Request<RequestBody<Body>>, Response<Body>>();
    let mut service = IdempotentRetryLayer::new().layer(mock);
    handle.allow(0);
    assert!(poll_once(service.ready()).is_pending());
    handle.allow(1);
    let call = service.ready().await.expect("ready").call(post("{}"));
    let call = tokio::spawn(call);
    let (_, reply) = handle.next_request().await.expect("a request");
    reply.send_response(status(503));
    // The next attempt waits until the service is ready for it.
    let early = timeout(Duration::from_secs(5), handle.next_request()).await;
    assert!(early.is_err());
    handle.allow(1);
    let (_, reply) = handle.next_request().await.expect("a request");
    reply.send_response(status(201));
    let response = call.await.expect("no panic").expect("a response");
    assert_eq!(delivery(&response).attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_does_not_become_ready_again_ends_the_call_with_its_deadline() {
    let (mock, mut handle) = mock::pair::<Request<RequestBody<Body>>, Response<Body>>();
    let layer = IdempotentRetryLayer::new().with_deadline(Duration::from_secs(7));
    let mut service = layer.layer(mock);
    handle.allow(1);
    let begin = tokio::time::Instant::now();
    let call = tokio::spawn(service.ready().await.expect("ready").call(post("{}")));
    let (_, reply) = handle.next_request().await.expect("a request");
    reply.send_error("reset");

    let error = call.await.expect("no panic").expect_err("an error");

    assert_eq!((error.kind(), error.attempts()), (ErrorKind::Timeout, 1));
    assert!(error.outcome_is_unknown());
    assert_eq!(begin.elapsed(), Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn an_error_of_poll_ready_reaches_the_caller() {
    let (mock, mut handle) = mock::pair::<Request<RequestBody<Body>>, Response<Body>>();
    let mut service = IdempotentRetryLayer::new().layer(mock);
    handle.send_error("closed");
    let error = service.ready().await.map(drop).expect_err("an error");
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::Service, 0));
    assert!(!error.outcome_is_unknown());
    let source = std::error::Error::source(&error).expect("a source");
    assert_eq!(source.to_string(), "closed");
}

#[tokio::test(start_paused = true)]
async fn one_permit_is_enough_and_is_free_during_the_pauses() {
    let wire = Wire::new([Step::Hang, Step::Fail, answer(503)]);
    let limited = ConcurrencyLimit::new(wire.clone(), 1);
    let service = IdempotentRetryLayer::new().layer(limited);
    let calls: Vec<_> = (0..3)
        .map(|_| tokio::spawn(service.clone().oneshot(post("{}"))))
        .collect();
    for call in calls {
        let response = call.await.expect("no panic").expect("a response");
        assert_eq!(response.status(), StatusCode::CREATED);
    }
    assert_eq!(wire.count(), 6);
}

/// Answers 503 with a body that holds on to something, and counts who does when it is to get ready.
#[derive(Clone)]
struct Holding(Arc<()>, Arc<Mutex<Vec<usize>>>);

impl Service<Request<RequestBody<Body>>> for Holding {
    type Response = Response<BoxBody<Bytes, Infallible>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let mut holders = self.1.lock().expect("a lock");
        holders.push(Arc::strong_count(&self.0));
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody<Body>>) -> Self::Future {
        let held = Arc::clone(&self.0);
        let body = Body::from("busy").map_err(move |never| {
            let _held = &held;
            never
        });
        let mut response = Response::new(BodyExt::boxed(body));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        ready(Ok(response))
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_given_is_let_go_of_before_the_next_attempt() {
    let holders = Arc::new(Mutex::new(Vec::new()));
    let service = IdempotentRetryLayer::new()
        .with_attempts(3)
        .with_response_body_limit(0)
        .layer(Holding(Arc::new(()), Arc::clone(&holders)));
    let response = service.oneshot(post("{}")).await.expect("a response");
    assert_eq!(delivery(&response).attempts(), 3);
    let holders = holders.lock().expect("a lock");
    // The service, and nobody else.
    assert_eq!(holders[..], [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_buffer_inside_works() {
    let wire = Wire::new([Step::Fail, answer(503)]);
    let service = IdempotentRetryLayer::new().layer(Buffer::new(wire.clone(), 1));
    for attempts in [3, 1] {
        let response = service.clone().oneshot(post("{}")).await;
        let response = response.expect("a response");
        assert_eq!(delivery(&response).attempts(), attempts);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shed_attempt_is_retried() {
    let wire = Wire::new([Step::Late(Duration::from_secs(1), status(201))]);
    let shedding = LoadShed::new(ConcurrencyLimit::new(wire, 1));
    let service = IdempotentRetryLayer::new()
        .with_attempts(50)
        .layer(shedding);
    let mut first = pin!(service.clone().oneshot(post("{}")));
    assert!(poll_once(first.as_mut()).is_pending());

    let second = service.clone().oneshot(post("{}"));
    let (first, second) = tokio::join!(first, second);

    assert_eq!(delivery(&first.expect("a response")).attempts(), 1);
    assert!(delivery(&second.expect("a response")).attempts() > 1);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_boxed_kind_is_the_source_itself() {
    let shedding = LoadShed::new(ConcurrencyLimit::new(Wire::new([]), 0));
    let layer = IdempotentRetryLayer::new().with_attempts(2);
    let error = layer.layer(shedding).oneshot(post("{}")).await;
    let error = error.map(drop).expect_err("an error");
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::Service, 2));
    let source = std::error::Error::source(&error).expect("a source");
    assert!(source.is::<Overloaded>());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_drops_its_attempt_and_makes_no_other() {
    let wire = Wire::new([Step::Hang, Step::Fail]);
    let limited = ConcurrencyLimit::new(wire.clone(), 1);
    let service = IdempotentRetryLayer::new().layer(limited);
    for wait in [Duration::from_secs(1), Duration::from_millis(1)] {
        let call = service.clone().oneshot(post("{}"));
        let before = wire.count();
        drop(timeout(wait, call).await);
        // Time goes by, and nothing is left that would use it.
        drop(timeout(Duration::from_secs(3600), pending::<()>()).await);
        assert_eq!(wire.count(), before + 1);
    }
    // Its permit has gone too.
    let response = service.clone().oneshot(post("{}")).await;
    assert_eq!(response.expect("a response").status(), StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn it_stands_in_a_service_builder_and_can_be_boxed() {
    let wire = Wire::new([Step::Fail]);
    let service = ServiceBuilder::new()
        .concurrency_limit(4)
        .layer(IdempotentRetryLayer::new())
        .timeout(Duration::from_secs(60))
        .service(wire);
    let service = BoxCloneSyncService::new(service);
    let response = service.oneshot(post("{}")).await.expect("a response");
    assert_eq!(response.status(), StatusCode::CREATED);
}

fn redirect(status: u16, to: &str) -> Step {
    with_headers(status, &[("location", to)])
}

#[tokio::test(start_paused = true)]
async fn a_redirect_is_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let wire = Wire::new([redirect(status, "http://elsewhere.test/")]);
        let response = send(&IdempotentRetryLayer::new(), &wire, post("{}")).await;
        let response = response.expect("a response");
        assert_eq!((response.status().as_u16(), wire.count()), (status, 1));
        assert_eq!(response.headers()["location"], "http://elsewhere.test/");
    }
}

type Clones = fn(&Body) -> Option<Body>;

/// Follows redirects as by default, those that send the body again among them.
fn following() -> FollowRedirectLayer<And<Standard, CloneBodyFn<Clones>>> {
    let clone: Clones = |body| Some(body.clone());
    let policy = Standard::default().and::<_, Body, ()>(clone_body_fn(clone));
    FollowRedirectLayer::with_policy(policy)
}

/// The methods, origins and keys of the requests after a redirect.
async fn followed<S>(
    service: S,
    wire: &Wire,
    request: Request<Body>,
) -> Vec<(String, Option<String>)>
where
    S: Service<Request<Body>, Error: std::fmt::Debug>,
{
    service.oneshot(request).await.expect("a response");
    let seen = wire.seen();
    let seen = seen.iter().map(|request| {
        let head = &request.head;
        let key = head.headers.get("idempotency-key");
        let key = key.map(|key| key.to_str().expect("a text").to_owned());
        let origin = head.uri.authority().expect("an absolute URI");
        (format!("{} {origin}", head.method), key)
    });
    seen.collect()
}

#[tokio::test(start_paused = true)]
async fn a_redirect_followed_outside_of_the_layer_gets_no_key_of_another_request() {
    for (status, to, next, is_keyed) in [
        (303, "http://payments.test/done", "GET payments.test", false),
        (302, "http://elsewhere.test/", "GET elsewhere.test", false),
        (307, "http://elsewhere.test/", "POST elsewhere.test", true),
    ] {
        for given in [false, true] {
            let wire = Wire::new([redirect(status, to)]);
            let client = IdempotentRetryLayer::new().layer(wire.clone());
            let client = following().layer(client);
            let mut request = post("{}");
            if given {
                request.extensions_mut().insert(IdempotencyKey::random());
            }

            let seen = followed(client, &wire, request).await;

            assert_eq!(seen[1].0, next);
            assert_eq!(seen[1].1.is_some(), is_keyed);
            assert_ne!(seen[1].1, seen[0].1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_redirect_followed_inside_of_the_layer_carries_the_key_along() {
    // That is why it doesn't belong there, and why it doesn't compile unless the body is made into another one first.
    for (status, next) in [(307, "POST elsewhere.test"), (303, "GET elsewhere.test")] {
        let wire = Wire::new([redirect(status, "http://elsewhere.test/")]);
        let inner = following().layer(wire.clone());
        let inner = inner.map_request(|request: Request<RequestBody<Body>>| {
            request.map(|_body| Body::from("{}"))
        });
        let client = IdempotentRetryLayer::new().layer(inner);

        let seen = followed(client, &wire, post("{}")).await;

        assert_eq!(seen[1].0, next);
        assert!(seen[1].1.is_some());
        assert_eq!(seen[1].1, seen[0].1);
    }
}

#[test]
fn the_wrapped_client_can_be_reached_and_had_back() {
    let mut client = IdempotentRetryLayer::new().layer(1);
    *client.get_mut() += 1;
    assert_eq!(*client.get_ref(), 2);
    assert_eq!(client.into_inner(), 2);
}
