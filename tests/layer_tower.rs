//! The layer as a tower service: readiness, permits, errors, and bodies of any kind.
#![cfg(feature = "memory")]

mod support;

use std::{
    collections::VecDeque,
    convert::Infallible,
    marker::PhantomPinned,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use support::{
    Body, Runs,
    body::Pipe,
    handler::{Gate, answering, creating, layer, response},
    post, send,
};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, buffer::Buffer, limit::ConcurrencyLimit,
    load_shed::LoadShed, service_fn, util::BoxCloneSyncService,
};
use tower_idempotency::{MemoryStore, RejectionKind, RequestBody};
use tower_test::mock;

/// One poll of a future.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Panics when it is called without having been polled ready; a clone starts unready.
#[derive(Debug, Default)]
struct Strict {
    ready: bool,
    runs: Runs,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            runs: self.runs.clone(),
        }
    }
}

impl Service<Request<RequestBody<Body>>> for Strict {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody<Body>>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called unready");
        let run = self.runs.add();
        std::future::ready(Ok(response(StatusCode::CREATED, format!("run {run}"))))
    }
}

#[tokio::test]
async fn the_service_that_was_polled_ready_is_the_one_that_is_called() {
    for detached in [true, false] {
        let inner = Strict::default();
        let runs = inner.runs.clone();
        let idempotency = layer(MemoryStore::new()).with_detached(detached);
        let mut service = idempotency.layer(inner);
        // One instance, readied before each call, as a server's connection does it.
        for key in ["a", "a", "b", "a,", "b", "c"] {
            let answer = service
                .ready()
                .await
                .expect("ready")
                .call(post(key, "{}"))
                .await;
            let answer = support::read(answer.expect("an answer")).await;
            assert_ne!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR, "{key}");
        }
        assert_eq!(runs.count(), 3);
        let mut unkeyed = post("k", "{}");
        unkeyed.headers_mut().clear();
        let answer = service.ready().await.expect("ready").call(unkeyed).await;
        assert_eq!(answer.expect("an answer").status(), StatusCode::CREATED);
    }
}

#[tokio::test]
async fn it_is_ready_when_the_wrapped_service_is_and_a_replay_does_not_call_it() {
    let (mock, mut handle) = mock::pair::<Request<RequestBody<Body>>, Response<Body>>();
    let mut service = layer(MemoryStore::new()).layer(mock);
    handle.allow(0);
    assert!(poll_once(service.ready()).is_pending());

    handle.allow(1);
    let first = tokio::spawn(service.ready().await.expect("ready").call(post("k", "{}")));
    let (request, answer) = handle.next_request().await.expect("a request");
    assert_eq!(request.uri(), "/charges");
    answer.send_response(response(StatusCode::CREATED, "made"));
    let first = first.await.expect("no panic").expect("an answer");
    assert_eq!(first.status(), StatusCode::CREATED);

    assert!(poll_once(service.ready()).is_pending());
    handle.allow(1);
    let replay = service
        .ready()
        .await
        .expect("ready")
        .call(post("k", "{}"))
        .await;
    let replay = support::read(replay.expect("an answer")).await;
    assert!(replay.is_replay());
    assert!(poll_once(handle.next_request()).is_pending());
}

#[tokio::test]
async fn an_error_of_poll_ready_reaches_the_caller() {
    let (mock, mut handle) = mock::pair::<Request<RequestBody<Body>>, Response<Body>>();
    let mut service = layer(MemoryStore::new()).layer(mock);
    handle.send_error("closed");
    let error = service.ready().await.map(drop).expect_err("an error");
    assert_eq!(error.to_string(), "closed");
}

#[tokio::test]
async fn no_permit_is_held_by_an_answer_that_needs_no_run() {
    let runs = Runs::default();
    let limited = ConcurrencyLimit::new(creating(&runs), 1);
    let service = layer(MemoryStore::new()).layer(limited);
    let call = |key: &'static str, body: &'static str| service.clone().oneshot(post(key, body));

    call("k", "{}").await.expect("an answer");
    // All are held unread, and none holds the only permit.
    let replay = call("k", "{}").await.expect("an answer");
    let reused = call("k", "[]").await.expect("an answer");
    let refused = call("k,", "{}").await.expect("an answer");
    let next = call("l", "{}").await.expect("an answer");

    assert_eq!(replay.headers()["idempotent-replayed"], "true");
    assert_eq!(reused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert_eq!(next.status(), StatusCode::CREATED);
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn no_permit_is_held_by_a_duplicate_of_a_running_request() {
    let (runs, gate) = (Runs::default(), Gate::closed());
    let limited = ConcurrencyLimit::new(gated(&runs, &gate), 2);
    let service = layer(MemoryStore::new()).layer(limited);
    let slow = tokio::spawn(service.clone().oneshot(post("slow", "{}")));
    gate.reached().await;

    let duplicate = service
        .clone()
        .oneshot(post("slow", "{}"))
        .await
        .expect("an answer");
    let other = service
        .clone()
        .oneshot(post("other", "{}"))
        .await
        .expect("an answer");

    assert_eq!(duplicate.status(), StatusCode::CONFLICT);
    assert_eq!(other.status(), StatusCode::CREATED);
    gate.open();
    assert_eq!(
        slow.await.expect("no panic").expect("an answer").status(),
        StatusCode::CREATED
    );
    assert_eq!(runs.count(), 2);
}

/// A handler that stands at the gate if the key is `slow`.
fn gated(
    runs: &Runs,
    gate: &Gate,
) -> BoxCloneSyncService<Request<RequestBody<Body>>, Response<Body>, Infallible> {
    let (runs, gate) = (runs.clone(), gate.clone());
    BoxCloneSyncService::new(service_fn(move |request: Request<RequestBody<Body>>| {
        runs.add();
        let gate = gate.clone();
        async move {
            if request.headers()["idempotency-key"] == "slow" {
                gate.pass().await;
            }
            Ok(response(StatusCode::CREATED, ""))
        }
    }))
}

#[tokio::test]
async fn no_permit_is_held_while_a_response_body_is_collected() {
    let runs = Runs::default();
    let (sender, body) = Pipe::new();
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let handler = answering(&runs, move |_, _, _| {
        let body = body.lock().expect("a lock").take();
        Response::new(body.unwrap_or_else(|| Pipe::new().1))
    });
    let service = layer(MemoryStore::new()).layer(ConcurrencyLimit::new(handler, 1));
    let first = tokio::spawn(service.clone().oneshot(post("k", "{}")));
    while runs.count() == 0 {
        tokio::task::yield_now().await;
    }

    let other = service
        .clone()
        .oneshot(post("l", "{}"))
        .await
        .expect("an answer");

    assert_eq!(other.status(), StatusCode::OK);
    assert_eq!(runs.count(), 2);
    assert!(!first.is_finished());
    sender.send("whole").expect("a reader");
    drop(sender);
    let first = first.await.expect("no panic").expect("an answer");
    assert_eq!(support::read(first).await.text(), "whole");
}

#[tokio::test]
async fn a_buffer_inside_works() {
    let inner = Strict::default();
    let runs = inner.runs.clone();
    let service = layer(MemoryStore::new()).layer(Buffer::new(inner, 4));
    for key in ["a", "a", "b", "b"] {
        let answer = service
            .clone()
            .oneshot(post(key, "{}"))
            .await
            .expect("an answer");
        assert_eq!(answer.status(), StatusCode::CREATED);
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn load_shedding_inside_works_and_replays_are_not_shed() {
    let (runs, gate) = (Runs::default(), Gate::closed());
    let limited = LoadShed::new(ConcurrencyLimit::new(gated(&runs, &gate), 1));
    let service = layer(MemoryStore::new()).layer(limited);
    let call = |key: &'static str| service.clone().oneshot(post(key, "{}"));
    call("done").await.expect("an answer");
    let slow = tokio::spawn(call("slow"));
    gate.reached().await;

    let shed = call("new").await.map(drop).expect_err("an error");
    let replay = call("done").await.expect("an answer");

    assert!(shed.is::<tower::load_shed::error::Overloaded>());
    assert_eq!(replay.headers()["idempotent-replayed"], "true");
    gate.open();
    slow.await.expect("no panic").expect("an answer");
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn an_error_of_any_type_reaches_the_caller_unchanged() {
    #[derive(Debug, PartialEq)]
    struct NotEvenAnError(u8);

    for detached in [true, false] {
        let idempotency = layer(MemoryStore::new()).with_detached(detached);
        let service = idempotency.layer(service_fn(async |_: Request<RequestBody<Body>>| {
            Err::<Response<Body>, _>(NotEvenAnError(7))
        }));

        let failed = service.clone().oneshot(post("k", "{}")).await;
        let again = send(&service, post("k", "{}")).await;

        assert_eq!(failed.err(), Some(NotEvenAnError(7)));
        assert_eq!(again.rejection(), Some(RejectionKind::OutcomeUnknown));
    }
}

pin_project_lite::pin_project! {
    /// A body that can't be moved once it was polled, and whose data isn't `Bytes`.
    struct Pinned {
        frames: VecDeque<&'static str>,
        #[pin]
        pinned: PhantomPinned,
    }
}

impl Pinned {
    fn new<const N: usize>(frames: [&'static str; N]) -> Self {
        Self {
            frames: frames.into(),
            pinned: PhantomPinned,
        }
    }
}

impl http_body::Body for Pinned {
    type Data = VecDeque<u8>;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<VecDeque<u8>>, Infallible>>> {
        let next = self.project().frames.pop_front();
        Poll::Ready(next.map(|text| Ok(Frame::data(text.bytes().collect()))))
    }
}

#[tokio::test]
async fn any_body_goes_in_and_out() {
    let runs = Runs::default();
    let service = layer(MemoryStore::new()).layer(answering(&runs, |_, parts, body: Bytes| {
        assert_eq!(body, "abc");
        let status = match parts.headers.contains_key("idempotency-key") {
            true => StatusCode::OK,
            false => StatusCode::NOT_FOUND,
        };
        let mut response = Response::new(Pinned::new(["d", "ef"]));
        *response.status_mut() = status;
        response
    }));
    for (key, status) in [(Some("k"), 200), (Some("k"), 200), (None, 404)] {
        let mut request = Request::post("/");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request
            .body(Pinned::new(["ab", "c"]))
            .expect("a valid request");
        let answer = send(&service, request).await;
        assert_eq!((answer.status().as_u16(), answer.text()), (status, "def"));
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn it_stands_in_a_service_builder_and_can_be_boxed() {
    let runs = Runs::default();
    let service = ServiceBuilder::new()
        .concurrency_limit(4)
        .layer(layer(MemoryStore::new()))
        .map_response(|response: Response<Body>| response.map(BodyExt::boxed))
        .service(creating::<Body>(&runs));
    let service = BoxCloneSyncService::new(service);
    for _ in 0..2 {
        assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1: {}");
    }
    assert_eq!(runs.count(), 1);
}

#[test]
fn the_wrapped_service_can_be_reached_and_had_back() {
    let mut service = layer(MemoryStore::new()).layer(1);
    *service.get_mut() += 1;
    assert_eq!(*service.get_ref(), 2);
    assert_eq!(service.into_inner(), 2);
}
