//! The same bytes on all attempts, whatever the body is and whatever the attempt before met.
#![cfg(all(feature = "client", feature = "memory"))]

mod client_support;
mod support;

use std::time::Duration;

use bytes::Bytes;
use client_support::{Step, Wire, answer, delivery, post, send, text};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use support::body::{Broken, Pipe, Script, Step as Frame};
use tower_idempotency::client::{ErrorKind, GaveUp, IdempotentRetryLayer};

type AnyBody = BoxBody<Bytes, Broken>;

const MULTIPART: &str = "--X\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--X--\r\n";

fn streamed() -> AnyBody {
    let frames = [
        Frame::Data("{\"amount\":"),
        Frame::Data(""),
        Frame::Data("100}"),
    ];
    Script::new(frames).boxed()
}

fn whole(text: &'static str) -> AnyBody {
    let body: Full<Bytes> = Full::from(text);
    body.map_err(|never| match never {}).boxed()
}

fn request(content_type: &str, body: AnyBody) -> Request<AnyBody> {
    Request::post("http://payments.test/charges?a=b")
        .header("content-type", content_type)
        .header("x-trace", "1")
        .header("x-trace", "2")
        .body(body)
        .expect("a valid request")
}

/// Ways for an attempt to end without an answer that counts.
fn failures() -> [Step; 6] {
    [
        Step::Fail,
        Step::Hang,
        answer(503),
        answer(429),
        client_support::problem(409, "in_flight"),
        answer(408),
    ]
}

#[tokio::test(start_paused = true)]
async fn all_attempts_have_the_same_head_and_bytes() {
    for (content_type, make, bytes) in [
        (
            "application/json",
            streamed as fn() -> AnyBody,
            "{\"amount\":100}",
        ),
        (
            "application/json",
            || whole("{\"amount\":100}"),
            "{\"amount\":100}",
        ),
        (
            "multipart/form-data; boundary=X",
            || whole(MULTIPART),
            MULTIPART,
        ),
        ("text/plain", || whole(""), ""),
        ("text/plain", || Script::new([]).boxed(), ""),
    ] {
        for failure in failures() {
            let wire = Wire::new([failure, Step::Fail]);
            let layer = IdempotentRetryLayer::new();
            let response = send(&layer, &wire, request(content_type, make()));

            assert_eq!(
                response.await.expect("a response").status(),
                StatusCode::CREATED
            );
            let seen = wire.seen();
            assert_eq!(seen.len(), 3);
            for attempt in &seen {
                assert_eq!(attempt.body, bytes);
                assert_eq!(attempt.key(), seen[0].key());
                assert_eq!(attempt.head.headers, seen[0].head.headers);
                assert_eq!(attempt.head.headers["content-type"], content_type);
                let traces = attempt.head.headers.get_all("x-trace");
                assert!(traces.iter().eq(["1", "2"]));
                assert_eq!(attempt.head.method, "POST");
                assert_eq!(attempt.head.uri, "http://payments.test/charges?a=b");
                assert_eq!(attempt.head.version, http::Version::HTTP_11);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_and_extensions_are_sent_again_too() {
    #[derive(Clone, Debug, PartialEq)]
    struct Mark(u8);

    let mut trailers = HeaderMap::new();
    trailers.insert("digest", "abc".parse().expect("a header value"));
    let body = Script::new([Frame::Data("a"), Frame::Trailers(trailers.clone())]);
    let mut request = request("text/plain", body.boxed());
    request.extensions_mut().insert(Mark(7));
    let wire = Wire::new([Step::Fail]);

    let response = send(&IdempotentRetryLayer::new(), &wire, request).await;

    response.expect("a response");
    let seen = wire.seen();
    assert_eq!(seen.len(), 2);
    for attempt in seen {
        assert_eq!(attempt.trailers.as_ref(), Some(&trailers));
        assert_eq!(attempt.head.extensions.get(), Some(&Mark(7)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_above_the_limit_is_streamed_whole_with_its_key_and_sent_once() {
    let layer = IdempotentRetryLayer::new().with_request_body_limit(4);
    for (body, bytes, attempts) in [
        (whole("1234"), "1234", 2),
        (whole("12345"), "12345", 1),
        (
            Script::new([Frame::Data("12"), Frame::Data("34")]).boxed(),
            "1234",
            2,
        ),
        (
            Script::new([Frame::Data("12"), Frame::Data("345"), Frame::Data("67")]).boxed(),
            "1234567",
            1,
        ),
    ] {
        let wire = Wire::new([answer(503)]);
        let response = send(&layer, &wire, request("text/plain", body)).await;

        let response = response.expect("a response");
        let seen = wire.seen();
        assert_eq!(seen.len(), attempts);
        assert!(seen.iter().all(|attempt| attempt.body == bytes));
        assert_eq!(seen[0].key(), delivery(&response).key().as_str());
        let gave_up = (attempts == 1).then_some(GaveUp::Body);
        assert_eq!(delivery(&response).gave_up(), gave_up);
        assert_eq!(delivery(&response).outcome_is_unknown(), attempts == 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_body_whose_attempt_fails_is_an_error_that_says_why_it_was_not_retried() {
    let layer = IdempotentRetryLayer::new().with_request_body_limit(4);
    for (step, kind) in [
        (Step::Fail, ErrorKind::Service),
        (Step::Hang, ErrorKind::Timeout),
    ] {
        let wire = Wire::new([step]);
        let error = send(&layer, &wire, post("12345"))
            .await
            .expect_err("an error");
        assert_eq!((error.kind(), error.attempts()), (kind, 1));
        assert_eq!(error.gave_up(), Some(GaveUp::Body));
        assert!(error.outcome_is_unknown());
        assert_eq!(error.key().expect("a key").as_str(), wire.seen()[0].key());
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_fails_is_an_error_and_nothing_is_sent() {
    let wire = Wire::new([]);
    let body = Script::new([Frame::Data("a"), Frame::Fail]);
    let layer = IdempotentRetryLayer::new();
    let error = send(&layer, &wire, request("text/plain", body.boxed()));

    let error = error.await.expect_err("an error");

    assert_eq!(
        (error.kind(), error.attempts()),
        (ErrorKind::RequestBody, 0)
    );
    assert!(!error.outcome_is_unknown());
    let source = std::error::Error::source(&error).expect("a source");
    assert!(source.is::<Broken>());
    assert_eq!(wire.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_end_ends_with_the_deadline() {
    let wire = Wire::new([]);
    let layer = IdempotentRetryLayer::new().with_deadline(Duration::from_secs(3));
    let (_sender, body) = Pipe::new();
    let begin = tokio::time::Instant::now();
    let error = send(&layer, &wire, request("text/plain", body.boxed())).await;

    let error = error.expect_err("an error");
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::Timeout, 0));
    assert_eq!(error.gave_up(), Some(GaveUp::Deadline));
    assert!(!error.outcome_is_unknown());
    assert_eq!(begin.elapsed(), Duration::from_secs(3));
    assert_eq!(wire.count(), 0);
}

fn broken_off() -> Step<AnyBody> {
    let mut response = http::Response::new(Script::new([Frame::Data("do"), Frame::Fail]).boxed());
    *response.status_mut() = StatusCode::CREATED;
    Step::Answer(response)
}

fn any_wire<const N: usize>(steps: [Step<AnyBody>; N]) -> Wire<AnyBody> {
    Wire::with_rest(steps, || http::Response::new(whole("done")))
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_is_retried() {
    let wire = any_wire([broken_off(), broken_off()]);
    let response = send(&IdempotentRetryLayer::new(), &wire, post("{}")).await;
    let response = response.expect("a response");
    assert_eq!(delivery(&response).attempts(), 3);
    assert_eq!(text(response).await, "done");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_at_last_is_an_error_of_unknown_outcome() {
    let wire = any_wire([broken_off()]);
    let layer = IdempotentRetryLayer::new().with_attempts(1);
    let error = send(&layer, &wire, post("{}")).await.expect_err("an error");
    assert_eq!(error.kind(), ErrorKind::Service);
    assert!(error.outcome_is_unknown());
    let source = std::error::Error::source(&error).expect("a source");
    assert!(source.is::<Broken>());
}

/// A response of this type and body.
fn typed(content_type: &str, body: AnyBody) -> Step<AnyBody> {
    let mut response = http::Response::new(body);
    let value = content_type.parse().expect("a header value");
    response.headers_mut().insert("content-type", value);
    Step::Answer(response)
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_collected_is_streamed_and_may_break_off() {
    let broken = || Script::new([Frame::Data("123"), Frame::Data("45"), Frame::Fail]).boxed();
    for (content_type, limit) in [
        ("text/plain", 4),
        ("text/plain", 0),
        ("text/event-stream", 100),
    ] {
        let wire = any_wire([typed(content_type, broken())]);
        let layer = IdempotentRetryLayer::new().with_response_body_limit(limit);

        let response = send(&layer, &wire, post("{}")).await.expect("a response");

        assert_eq!(wire.count(), 1);
        let mut body = response.into_body();
        let mut read = Vec::new();
        let end = loop {
            match body.frame().await {
                Some(Ok(frame)) => read.extend(frame.into_data().expect("data")),
                end => break end,
            }
        };
        assert_eq!(read, b"12345");
        assert!(matches!(end, Some(Err(Broken))));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_slow_to_end_is_given_with_what_was_read_of_it() {
    for (content_type, attempt_timeout, waited) in [
        ("text/event-stream", 10, 0),
        ("text/plain", 10, 5),
        ("text/plain", 3, 3),
    ] {
        let wire = any_wire([typed(
            content_type,
            Script::new([Frame::Dribble("tick")]).boxed(),
        )]);
        let layer =
            IdempotentRetryLayer::new().with_attempt_timeout(Duration::from_secs(attempt_timeout));
        let begin = tokio::time::Instant::now();

        let response = send(&layer, &wire, post("{}")).await.expect("a response");

        assert_eq!(begin.elapsed(), Duration::from_secs(waited));
        assert_eq!(wire.count(), 1);
        let mut body = response.into_body();
        let frame = body.frame().await.expect("a frame").expect("data");
        assert!(frame.into_data().expect("data").starts_with(b"tick"));
    }
}

/// One of our server's refusals of which the head has come.
fn refused(body: AnyBody) -> Step<AnyBody> {
    let Step::Answer(mut response) = typed("application/problem+json", body) else {
        unreachable!("an answer was made");
    };
    *response.status_mut() = StatusCode::CONFLICT;
    Step::Answer(response)
}

#[tokio::test(start_paused = true)]
async fn a_conflict_that_was_not_read_is_never_taken_for_a_refusal() {
    // It may be one that is in flight, or of unknown outcome.
    let stalled = || refused(Script::new([Frame::Dribble("{")]).boxed());
    let layer = IdempotentRetryLayer::new();
    let wire = any_wire([stalled(), stalled()]);
    send(&layer, &wire, post("{}")).await.expect("a response");
    assert_eq!(wire.count(), 3);

    let layer = layer.with_attempts(1);
    let wire = any_wire([stalled()]);
    let error = send(&layer, &wire, post("{}")).await.expect_err("an error");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.outcome_is_unknown());

    let long = || whole(Box::leak("x".repeat(20_000).into_boxed_str()));
    let wire = any_wire([refused(long())]);
    let layer = layer.with_response_body_limit(0);
    let response = send(&layer, &wire, post("{}")).await.expect("a response");
    assert!(delivery(&response).outcome_is_unknown());

    // Whatever another 4xx says, it did nothing.
    let Step::Answer(mut invalid) = refused(long()) else {
        unreachable!("an answer was made");
    };
    *invalid.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    let wire = any_wire([Step::Answer(invalid)]);
    let response = send(&layer, &wire, post("{}")).await.expect("a response");
    assert!(!delivery(&response).outcome_is_unknown());
}

#[tokio::test(start_paused = true)]
async fn a_conflict_that_can_not_be_made_out_is_never_taken_for_a_refusal() {
    // Empty, cut off by a proxy, or compressed for a layer outside of this one.
    let gzipped: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\0\x03";
    for body in [b"", &b"{\"code\":\"in_fl"[..], gzipped] {
        let body = Full::new(Bytes::from_static(body)).map_err(|never| match never {});
        let wire = any_wire([refused(body.boxed())]);
        let response = send(&IdempotentRetryLayer::new(), &wire, post("{}")).await;
        let response = response.expect("a response");
        assert!(delivery(&response).outcome_is_unknown());
    }
    // Another service's conflict is one.
    let wire = any_wire([refused(whole("{\"title\":\"sold out\"}"))]);
    let response = send(&IdempotentRetryLayer::new(), &wire, post("{}")).await;
    assert!(!delivery(&response.expect("a response")).outcome_is_unknown());
}

#[tokio::test(start_paused = true)]
async fn a_grpc_status_in_the_trailers_counts_too() {
    for (status, attempts) in [("14", 2), ("0", 1), ("3", 1)] {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", status.parse().expect("a header value"));
        let body = Script::new([Frame::Data("message"), Frame::Trailers(trailers.clone())]);
        let wire = Wire::with_rest([typed("application/grpc", body.boxed())], || {
            let mut response = http::Response::new(whole(""));
            let value = "0".parse().expect("a header value");
            response.headers_mut().insert("grpc-status", value);
            response
        });
        let layer = IdempotentRetryLayer::new().with_grpc_unary(|_| true);
        let request = request("application/grpc", whole("message"));

        let response = send(&layer, &wire, request).await.expect("a response");

        assert_eq!(wire.count(), attempts);
        if attempts == 1 {
            let body = response.into_body().collect().await.expect("a whole body");
            assert_eq!(body.trailers(), Some(&trailers));
            assert_eq!(body.to_bytes(), "message");
        }
    }
}
