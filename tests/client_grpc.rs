//! What the answers to gRPC calls mean: their status is in the head or in the trailers, and so is the rest of what they tell.
#![cfg(all(feature = "client", feature = "memory"))]

mod client_support;
mod support;

use std::time::Duration;

use bytes::Bytes;
use client_support::{Body, Step, Wire, delivery, send};
use http::{HeaderMap, HeaderName, Request, Response};
use http_body_util::{BodyExt, combinators::BoxBody};
use support::body::{Broken, Pipe, Script, Step as Frame};
use tower_idempotency::client::IdempotentRetryLayer;

type AnyBody = BoxBody<Bytes, Broken>;
type Metadata<'a> = &'a [(&'static str, &'static str)];

fn layer() -> IdempotentRetryLayer {
    let pause = Duration::from_millis(1);
    IdempotentRetryLayer::new()
        .with_grpc_unary(|_| true)
        .with_backoff(pause, pause)
        .with_attempts(2)
}

fn call(content_type: &str) -> Request<Body> {
    Request::post("http://payments.test/payments.Payments/Charge")
        .header("content-type", content_type)
        .body(Body::from("message"))
        .expect("a valid request")
}

fn metadata(list: Metadata<'_>) -> HeaderMap {
    let pair = |(name, value): &(&'static str, &str)| {
        let value = value.parse().expect("a header value");
        (HeaderName::from_static(name), value)
    };
    let mut metadata = HeaderMap::new();
    for (name, value) in list.iter().map(pair) {
        metadata.append(name, value);
    }
    metadata
}

fn answered(head: Metadata<'_>, body: AnyBody) -> Step<AnyBody> {
    let mut response = Response::new(body);
    *response.headers_mut() = metadata(head);
    let value = "application/grpc".parse().expect("a header value");
    response.headers_mut().insert("content-type", value);
    Step::Answer(response)
}

fn message(trailers: Metadata<'_>) -> AnyBody {
    let trailers = metadata(trailers);
    Script::new([Frame::Data("message"), Frame::Trailers(trailers)]).boxed()
}

/// A wire whose later answers are OK.
fn wire(first: Step<AnyBody>) -> Wire<AnyBody> {
    Wire::with_rest([first], || {
        let mut response = Response::new(message(&[("grpc-status", "0")]));
        let value = "application/grpc".parse().expect("a header value");
        response.headers_mut().insert("content-type", value);
        response
    })
}

/// How many attempts two may be, and whether the outcome is unknown after one of them, or after what was waited for.
async fn meaning(step: impl Fn() -> Step<AnyBody>) -> (usize, bool) {
    let retried = wire(step());
    send(&layer(), &retried, call("application/grpc"))
        .await
        .expect("a response");
    let once = layer().with_attempts(1);
    let response = send(&once, &wire(step()), call("application/grpc")).await;
    let response = response.expect("a response");
    (retried.count(), delivery(&response).outcome_is_unknown())
}

#[tokio::test(start_paused = true)]
async fn it_is_done_only_if_nothing_says_otherwise() {
    let ok = ("grpc-status", "0");
    let internal = ("grpc-status", "13");
    for (head, trailers, attempts, unknown) in [
        (&[][..], &[ok][..], 1, false),
        (&[ok], &[], 1, false),
        (&[ok, ok], &[ok], 1, false),
        (&[ok], &[internal], 2, true),
        (&[internal], &[ok], 2, true),
        (&[ok, internal], &[], 2, true),
        (&[], &[ok, internal], 2, true),
        // What never says how it ended has not ended well.
        (&[], &[], 2, true),
    ] {
        let step = || answered(head, message(trailers));
        assert_eq!(
            meaning(step).await,
            (attempts, unknown),
            "{head:?} {trailers:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_without_trailers_or_of_another_type_has_not_ended_well() {
    let cut = || answered(&[], Script::new([Frame::Data("message")]).boxed());
    assert_eq!(meaning(cut).await, (2, true));
    let empty = || answered(&[], Script::new([]).boxed());
    assert_eq!(meaning(empty).await, (2, true));
    let page = || {
        let mut response = Response::new(Script::new([Frame::Data("<p>Log in")]).boxed());
        let value = "text/html".parse().expect("a header value");
        response.headers_mut().insert("content-type", value);
        Step::Answer(response)
    };
    assert_eq!(meaning(page).await, (2, true));
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_status_is_still_to_come_leaves_the_outcome_unknown() {
    // Too large, and not to be collected at all.
    for limit in [3, 0] {
        let layer = layer().with_response_body_limit(limit);
        let wire = wire(answered(&[], message(&[("grpc-status", "14")])));
        let response = send(&layer, &wire, call("application/grpc")).await;
        let response = response.expect("a response");
        assert_eq!(wire.count(), 1);
        assert!(delivery(&response).outcome_is_unknown());
        let body = response.into_body().collect().await.expect("a whole body");
        assert_eq!(body.trailers().expect("trailers")["grpc-status"], "14");
    }
    // A server that sends its head first, and then does the work.
    let (_sender, body) = Pipe::new();
    let wire = wire(answered(&[], body.boxed()));
    let response = send(&layer(), &wire, call("application/grpc")).await;
    assert!(delivery(&response.expect("a response")).outcome_is_unknown());
}

#[tokio::test(start_paused = true)]
async fn code_and_pushback_count_in_the_trailers_too() {
    let aborted = ("grpc-status", "10");
    let unavailable = ("grpc-status", "14");
    for (trailers, attempts, unknown) in [
        (&[aborted, ("idempotency-code", "in_flight")][..], 2, false),
        (&[aborted, ("idempotency-code", "outcome_unknown")], 1, true),
        (&[aborted], 1, false),
        (
            &[unavailable, ("idempotency-code", "not_committed")],
            2,
            false,
        ),
        (&[unavailable, ("grpc-retry-pushback-ms", "-1")], 1, true),
    ] {
        let step = || answered(&[], message(trailers));
        assert_eq!(meaning(step).await, (attempts, unknown), "{trailers:?}");
    }
    let later = [unavailable, ("grpc-retry-pushback-ms", "5000")];
    let wire = wire(answered(&[], message(&later)));
    send(&layer(), &wire, call("application/grpc"))
        .await
        .expect("a response");
    let seen = wire.seen();
    assert!(seen[1].at - seen[0].at >= Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_call_of_grpc_web_passes_through() {
    for content_type in ["application/grpc-web", "application/grpc-web-text+proto"] {
        let wire = wire(Step::Fail);
        let error = send(&layer(), &wire, call(content_type)).await;
        let error = error.expect_err("an error");
        assert_eq!((error.attempts(), error.key()), (1, None));
        assert!(!wire.seen()[0].head.headers.contains_key("idempotency-key"));
    }
}
