//! Request bodies: where they are collected for the fingerprint, where they stream, and what becomes of bad ones.
#![cfg(feature = "memory")]

mod support;

use std::{convert::Infallible, pin::pin, sync::atomic::Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use support::{
    Body, Runs,
    body::{Pipe, Script, Step},
    handler::{Gate, answering, creating, layer, response},
    post, send,
    spy::Spy,
};
use tower::{Layer, service_fn};
use tower_idempotency::{FingerprintBy, KeyBy, MemoryStore, RejectionKind, RequestBody};

const LIMIT: usize = 8;

fn upload<B>(body: B) -> Request<B> {
    Request::post("/")
        .header("idempotency-key", "k")
        .body(body)
        .expect("a valid request")
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("\"e\""))])
}

#[tokio::test]
async fn head_only_hands_the_body_over_while_it_is_still_being_sent() {
    let (sender, body) = Pipe::new();
    let read_first = Gate::closed();
    let idempotency = layer(MemoryStore::new()).with_fingerprint(FingerprintBy::head_only());
    let service = idempotency.layer(service_fn({
        let read_first = read_first.clone();
        move |request: Request<RequestBody<Pipe>>| {
            let read_first = read_first.clone();
            async move {
                let mut body = request.into_body();
                let first = body.frame().await.expect("a frame").expect("no error");
                assert_eq!(first.into_data().expect("data"), "first ");
                read_first.pass().await;
                let rest = body.collect().await.expect("the rest").to_bytes();
                Ok::<_, Infallible>(response(StatusCode::OK, rest))
            }
        }
    }));

    let answer = tokio::spawn(async move { send(&service, upload(body)).await });
    sender.send("first ").expect("a reader");
    // The handler has it before the second frame exists.
    read_first.reached().await;
    sender.send("second").expect("a reader");
    drop(sender);
    read_first.open();

    assert_eq!(answer.await.expect("a run").text(), "second");
}

#[tokio::test]
async fn a_body_of_one_frame_is_handed_over_without_a_copy() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new());
    let service = idempotency.layer(service_fn({
        let runs = runs.clone();
        move |request: Request<RequestBody<Body>>| {
            runs.add();
            async move {
                let mut body = request.into_body();
                let frame = body.frame().await.expect("a frame").expect("no error");
                assert!(body.frame().await.is_none());
                let address = frame.into_data().expect("data").as_ptr() as usize;
                Ok::<_, Infallible>(response(StatusCode::OK, address.to_string()))
            }
        }
    }));
    let sent = Bytes::from(vec![b'x'; 4096]);
    let mut request = post("k", "");
    *request.body_mut() = Body::from(sent.clone());

    let answer = send(&service, request).await;

    assert_eq!(answer.text(), (sent.as_ptr() as usize).to_string());
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_collected_body_tells_its_length_or_keeps_its_trailers_and_leaves_it_open() {
    for trailers in [None, Some(trailers())] {
        let (expected, upper) = (trailers.clone(), trailers.is_none().then_some(4));
        let service = layer(MemoryStore::new()).layer(service_fn(
            move |request: Request<RequestBody<Script>>| {
                let expected = expected.clone();
                async move {
                    let body = request.into_body();
                    let hint = body.size_hint();
                    // Passed on over HTTP/1, a body of an exact length would lose its trailers.
                    assert_eq!((hint.lower(), hint.upper()), (4, upper));
                    assert!(!body.is_end_stream());
                    let body = body.collect().await.expect("a whole body");
                    assert_eq!(body.trailers(), expected.as_ref());
                    Ok::<_, Infallible>(response(StatusCode::OK, body.to_bytes()))
                }
            },
        ));
        let data = [Step::Data("ab"), Step::Data("cd")].into_iter();
        let body = Script::new(data.chain(trailers.map(Step::Trailers)));
        assert_eq!(send(&service, upload(body)).await.text(), "abcd");
    }
}

#[tokio::test]
async fn a_streamed_body_passes_on_what_the_clients_own_says() {
    let idempotency = layer(MemoryStore::new());
    let service = idempotency.layer(service_fn(
        |request: Request<RequestBody<Body>>| async move {
            let mut body = pin!(request.into_body());
            assert_eq!(body.size_hint().exact(), Some(3));
            assert!(!body.is_end_stream());
            body.frame().await.expect("a frame").expect("no error");
            assert!(body.is_end_stream());
            Ok::<_, Infallible>(response(StatusCode::OK, "read"))
        },
    ));
    let request = Request::post("/").body(Body::from("abc"));

    let answer = send(&service, request.expect("a valid request")).await;

    assert_eq!(answer.text(), "read");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_nothing_is_stored() {
    let announced = Script::new([Step::Data("123456789")]).with_length(9);
    let frames_of_announced = announced.frames();
    let bodies = [
        announced,
        Script::new([Step::Data("123456789")]),
        Script::new([Step::Data("1234"), Step::Data("56789")]),
        Script::new([Step::Endless("x")]),
    ];
    for body in bodies {
        let (runs, store) = (Runs::default(), Spy::new());
        let idempotency = layer(store.clone()).with_request_body_limit(LIMIT);
        let service = idempotency.layer(creating(&runs));

        let refused = send(&service, upload(body)).await;

        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(refused.rejection(), Some(RejectionKind::BodyTooLarge));
        assert_eq!((runs.count(), store.calls()), (0, vec![]));
    }
    assert_eq!(frames_of_announced.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_accepted() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_request_body_limit(LIMIT);
    let service = idempotency.layer(creating(&runs));

    let frames = Script::new([Step::Data("1234"), Step::Data("5678")]);
    assert_eq!(
        send(&service, upload(frames)).await.text(),
        "run 1: 12345678"
    );
    let one = Script::new([Step::Data("12345678")]).with_length(8);
    assert!(send(&service, upload(one)).await.is_replay());
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn the_limit_does_not_hold_where_the_body_streams() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new())
        .with_request_body_limit(LIMIT)
        .with_fingerprint(FingerprintBy::head_only());
    let service = idempotency.layer(creating(&runs));

    let answer = send(&service, upload(Script::new([Step::Data("123456789")]))).await;

    assert_eq!(answer.text(), "run 1: 123456789");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused_and_the_whole_one_runs_later() {
    let (runs, store) = (Runs::default(), Spy::new());
    let service = layer(store.clone()).layer(creating(&runs));
    for steps in [vec![Step::Fail], vec![Step::Data("ab"), Step::Fail]] {
        let refused = send(&service, upload(Script::new(steps))).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        assert_eq!(refused.rejection(), Some(RejectionKind::IncompleteBody));
    }
    assert_eq!((runs.count(), store.calls()), (0, vec![]));

    let whole = Script::new([Step::Data("ab"), Step::Data("cd")]);
    assert_eq!(send(&service, upload(whole)).await.text(), "run 1: abcd");
}

#[tokio::test]
async fn a_request_body_that_panics_is_a_500_and_nothing_is_stored() {
    let (runs, store) = (Runs::default(), Spy::new());
    let service = layer(store.clone()).layer(creating(&runs));

    let failed = send(&service, upload(Script::new([Step::Panic]))).await;

    assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
    assert_eq!((runs.count(), store.calls()), (0, vec![]));
}

#[tokio::test]
async fn a_body_without_a_key_in_it_reaches_the_handler_whole() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_key(KeyBy::body(|_, _| None));
    let service = idempotency.layer(answering(&runs, |_, _, body| {
        response(StatusCode::OK, body)
    }));

    let body = Script::new([Step::Data("ab"), Step::Data("cd")]);

    assert_eq!(send(&service, upload(body)).await.text(), "abcd");
}
