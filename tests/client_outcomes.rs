//! What the caller knows after a call: done, refused, or unknown; and for how long a key may be sent.
#![cfg(feature = "client")]

mod client_support;

use std::time::Duration;

use client_support::{Body, Step, Wire, answer, delivery, post, problem, send, with_headers};
use http::{Request, Response};
use tokio::time::timeout;
use tower::{Layer, ServiceExt};
use tower_idempotency::{
    IdempotencyKey, RequestBody,
    client::{ErrorKind, GaveUp, IdempotentRetryLayer, Resumed},
};
use tower_test::mock;

fn layer() -> IdempotentRetryLayer {
    let pause = Duration::from_millis(1);
    IdempotentRetryLayer::new().with_backoff(pause, pause)
}

/// Whether the outcome is unknown after a call of so many attempts that met this.
async fn is_unknown<const N: usize>(steps: [Step; N], request: Request<Body>) -> bool {
    let wire = Wire::new(steps);
    let layer = layer().with_attempts(N as u32);
    let unknown = match send(&layer, &wire, request).await {
        Ok(response) => delivery(&response).outcome_is_unknown(),
        Err(error) => error.outcome_is_unknown(),
    };
    assert_eq!(wire.count(), N);
    unknown
}

fn replay(status: u16) -> Step {
    with_headers(status, &[("idempotent-replayed", "true")])
}

#[tokio::test(start_paused = true)]
async fn the_outcome_of_one_attempt_is_what_its_answer_says() {
    for (step, unknown) in [
        (answer(200), false),
        (answer(303), false),
        (answer(307), false),
        (answer(101), true),
        (answer(600), true),
        (answer(999), true),
        (answer(400), false),
        (answer(401), false),
        (answer(422), false),
        (answer(409), false),
        (answer(425), false),
        (answer(429), false),
        (answer(408), true),
        (answer(500), true),
        (answer(501), true),
        (answer(503), true),
        (replay(500), false),
        (problem(409, "response_not_kept"), false),
        (problem(409, "outcome_unknown"), true),
        (problem(422, "key_reused"), false),
        (problem(503, "not_committed"), false),
        (problem(503, "store_full"), false),
        (problem(503, "store_unavailable"), false),
        (problem(503, "outcome_pending"), true),
        (problem(500, "handler_failed"), true),
        (problem(504, "run_limit"), true),
        (Step::Fail, true),
        (Step::Hang, true),
    ] {
        let name = format!("{step:?}");
        assert_eq!(is_unknown([step], post("{}")).await, unknown, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_tells_nothing_of_an_attempt_before_it_that_was_not_answered() {
    for refusal in [
        answer(400),
        answer(401),
        answer(403),
        answer(422),
        answer(429),
        answer(300),
        answer(301),
        // A log-in page, which is where a gateway sends all who have no session any more.
        answer(302),
        answer(303),
        answer(304),
        answer(307),
        answer(308),
        problem(409, "outcome_unknown"),
        problem(503, "not_committed"),
    ] {
        let name = format!("{refusal:?}");
        assert!(
            is_unknown([Step::Hang, refusal], post("{}")).await,
            "{name}"
        );
    }
    assert!(!is_unknown([answer(429), answer(401)], post("{}")).await);
}

#[tokio::test(start_paused = true)]
async fn a_later_success_or_replay_settles_what_was_open() {
    for settled in [
        answer(201),
        replay(201),
        replay(303),
        replay(307),
        replay(402),
        problem(409, "response_not_kept"),
    ] {
        let steps = [Step::Hang, Step::Fail, answer(500), settled];
        assert!(!is_unknown(steps, post("{}")).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_gives_up_waiting_has_an_unknown_outcome() {
    let steps = (0..100).map(|_| problem(409, "in_flight"));
    let wire = Wire::new(steps);
    let layer = IdempotentRetryLayer::new().with_deadline(Duration::from_secs(5));
    let response = send(&layer, &wire, post("{}")).await.expect("a response");
    assert_eq!(response.status(), 409);
    assert_eq!(delivery(&response).gave_up(), Some(GaveUp::Deadline));
    assert!(delivery(&response).outcome_is_unknown());
}

fn resumed(age: u64) -> Request<Body> {
    let mut request = post("{}");
    let extensions = request.extensions_mut();
    extensions.insert(IdempotencyKey::derive("charge", "order 17"));
    extensions.insert(Resumed::after(Duration::from_secs(age)));
    request
}

#[tokio::test(start_paused = true)]
async fn a_resumed_call_begins_with_an_unknown_outcome() {
    assert!(is_unknown([answer(401)], resumed(1)).await);
    assert!(!is_unknown([replay(201)], resumed(1)).await);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_not_resumed_with_a_new_key() {
    let wire = Wire::new([]);
    let mut request = resumed(1);
    request.extensions_mut().remove::<IdempotencyKey>();
    let error = send(&layer(), &wire, request).await.expect_err("an error");
    assert_eq!((error.kind(), wire.count()), (ErrorKind::InvalidKey, 0));
    // It was sent before, the caller says.
    assert!(error.outcome_is_unknown());

    for lines in [&["a b"][..], &["a", "a"], &["another"]] {
        let mut request = resumed(1);
        for line in lines {
            let header = line.parse().expect("a header value");
            request.headers_mut().append("idempotency-key", header);
        }
        let error = send(&layer(), &wire, request).await.expect_err("an error");
        assert_eq!((error.kind(), wire.count()), (ErrorKind::InvalidKey, 0));
        assert!(error.outcome_is_unknown());
    }

    let mut request = resumed(1);
    request.extensions_mut().remove::<IdempotencyKey>();
    let header = "order-17".parse().expect("a header value");
    request.headers_mut().insert("idempotency-key", header);
    send(&layer(), &wire, request).await.expect("a response");
    assert_eq!(wire.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_not_sent_once_it_is_too_old() {
    let layer = layer().with_max_key_age(Duration::from_secs(100));
    for (age, sent) in [(0, 1), (99, 1), (100, 0), (101, 0), (u64::MAX, 0)] {
        let wire = Wire::new([]);
        let response = send(&layer, &wire, resumed(age)).await;
        assert_eq!(wire.count(), sent, "{age}");
        if let Err(error) = response {
            assert_eq!((error.kind(), error.attempts()), (ErrorKind::KeyTooOld, 0));
            assert_eq!(
                error.key(),
                Some(&IdempotencyKey::derive("charge", "order 17"))
            );
            // It was sent before, the caller says.
            assert!(error.outcome_is_unknown());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_grows_too_old_while_the_service_is_not_ready_is_not_sent_again() {
    let (mock, mut handle) = mock::pair::<Request<RequestBody<Body>>, Response<Body>>();
    let age = Duration::from_secs(100);
    let layer = layer().with_max_key_age(age).with_deadline(age * 10);
    handle.allow(1);
    let call = tokio::spawn(layer.layer(mock).oneshot(post("{}")));
    let (_, reply) = handle.next_request().await.expect("a request");
    reply.send_error("reset");
    drop(timeout(age, handle.next_request()).await);
    handle.allow(1);

    let error = call.await.expect("no panic").expect_err("an error");
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::KeyTooOld, 1));
    assert_eq!(error.gave_up(), Some(GaveUp::KeyAge));
    assert!(error.outcome_is_unknown());
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_would_come_after_the_retention_is_not_made() {
    // The server keeps its keys for 100 s; the call would go on for 600 s.
    let layer = layer()
        .with_max_key_age(Duration::from_secs(90))
        .with_deadline(Duration::from_secs(600))
        .with_attempts(1000);
    let steps = (0..20).map(|_| with_headers(503, &[("retry-after", "10")]));
    let wire = Wire::new(steps);

    let response = send(&layer, &wire, post("{}")).await.expect("a response");

    assert_eq!(response.status(), 503);
    assert_eq!(delivery(&response).gave_up(), Some(GaveUp::KeyAge));
    let seen = wire.seen();
    assert_eq!(seen.len(), 9);
    assert!(seen[8].at - seen[0].at < Duration::from_secs(90));

    // One that was sent 75 s ago has 15 s left.
    let wire = Wire::new((0..20).map(|_| with_headers(503, &[("retry-after", "10")])));
    send(&layer, &wire, resumed(75)).await.expect("a response");
    assert_eq!(wire.count(), 2);
}
