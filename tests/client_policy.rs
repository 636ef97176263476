//! Which answers are final, which are retried, and which are waited for.
#![cfg(feature = "client")]

mod client_support;

use std::time::Duration;

use client_support::{
    Body, Step, Wire, answer, delivery, post, problem, problem_body, send, text, with_headers,
};
use http::{Request, Response};
use tower_idempotency::{
    RejectionKind,
    client::{AttemptEnd, Decision, GaveUp, IdempotentRetryLayer, RetryPolicy},
};

const GRPC: (&str, &str) = ("content-type", "application/grpc");

/// Makes a call with two attempts at most whose first answer is this one; tells whether there was a second.
async fn is_retried(step: Step) -> bool {
    let wire = Wire::new([step]);
    let layer = IdempotentRetryLayer::new().with_attempts(2);
    let response = send(&layer, &wire, post("{}")).await.expect("a response");
    let attempts = wire.count();
    assert_eq!(delivery(&response).attempts() as usize, attempts);
    assert_eq!(delivery(&response).gave_up(), None);
    attempts == 2
}

#[tokio::test(start_paused = true)]
async fn the_default_policy_follows_the_table() {
    const RETRIED: [u16; 8] = [408, 425, 429, 500, 502, 503, 504, 0];
    for status in (200..600).chain([0]) {
        let step = if status == 0 {
            Step::Fail
        } else {
            answer(status)
        };
        assert_eq!(
            is_retried(step).await,
            RETRIED.contains(&status),
            "{status}"
        );
    }
    assert!(is_retried(Step::Hang).await);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_our_server_is_retried_if_that_may_help() {
    for (kind, retried) in [
        (RejectionKind::MissingKey, false),
        (RejectionKind::InvalidKey, false),
        (RejectionKind::IncompleteBody, false),
        (RejectionKind::MissingScope, false),
        (RejectionKind::InFlight, true),
        (RejectionKind::ResponseNotKept, false),
        (RejectionKind::OutcomeUnknown, false),
        (RejectionKind::BodyTooLarge, false),
        (RejectionKind::KeyReused, false),
        (RejectionKind::HandlerFailed, true),
        (RejectionKind::RunLimit, true),
        (RejectionKind::StoreUnavailable, true),
        (RejectionKind::StoreFull, true),
        (RejectionKind::NotCommitted, true),
        (RejectionKind::OutcomePending, true),
    ] {
        let step = problem(kind.status().as_u16(), kind.code());
        assert_eq!(is_retried(step).await, retried, "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replay_is_final_whatever_its_status() {
    for status in [201, 404, 409, 429, 500, 503] {
        let marked = with_headers(status, &[("idempotent-replayed", "true")]);
        let wire = Wire::new([marked]);
        let response = send(&IdempotentRetryLayer::new(), &wire, post("{}")).await;
        let response = response.expect("a response");
        assert_eq!((response.status().as_u16(), wire.count()), (status, 1));
        assert!(delivery(&response).is_replay());
        assert!(!delivery(&response).outcome_is_unknown());
    }
    let marker = http::HeaderName::from_static("x-replay");
    let layer = IdempotentRetryLayer::new().with_replay_marker(marker);
    for (name, attempts) in [("x-replay", 1), ("idempotent-replayed", 2)] {
        let wire = Wire::new([with_headers(500, &[(name, "true")])]);
        send(&layer, &wire, post("{}")).await.expect("a response");
        assert_eq!(wire.count(), attempts, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_waited_for_only_if_it_is_ours_and_its_body_is_left_whole() {
    let long = format!(
        "{{\"code\":\"in_flight\",\"detail\":\"{}\"}}",
        "x".repeat(20_000)
    );
    for (content_type, body, attempts) in [
        ("application/problem+json", problem_body("in_flight"), 2),
        (
            "Application/Problem+JSON; charset=utf-8",
            problem_body("in_flight"),
            2,
        ),
        (
            "application/problem+json",
            problem_body("outcome_unknown"),
            1,
        ),
        (
            "application/problem+json",
            problem_body("something_else"),
            1,
        ),
        ("application/problem+json", "not json".to_owned(), 1),
        ("application/problem+json", "[]".to_owned(), 1),
        ("application/problem+json", "{\"code\":1}".to_owned(), 1),
        ("application/problem+json", String::new(), 1),
        // Longer than a problem document is read, whatever the limit for bodies.
        ("application/problem+json", long, 1),
        ("application/json", problem_body("in_flight"), 1),
    ] {
        let mut response = Response::new(Body::from(body.clone()));
        *response.status_mut() = http::StatusCode::CONFLICT;
        let value = content_type.parse().expect("a header value");
        response.headers_mut().insert("content-type", value);
        let wire = Wire::new([Step::Answer(response)]);
        let layer = IdempotentRetryLayer::new().with_response_body_limit(0);

        let response = send(&layer, &wire, post("{}")).await.expect("a response");

        assert_eq!(wire.count(), attempts, "{content_type}: {body:.60}");
        if attempts == 1 {
            assert_eq!(response.status(), 409);
            assert_eq!(text(response).await, body);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_run_in_flight_does_not_use_up_the_attempts() {
    let steps = (0..20).map(|_| problem(409, "in_flight"));
    let wire = Wire::new(steps.chain([answer(503)]));
    let layer = IdempotentRetryLayer::new()
        .with_attempts(2)
        .with_deadline(Duration::from_secs(600));
    let response = send(&layer, &wire, post("{}")).await.expect("a response");
    assert_eq!((response.status().as_u16(), wire.count()), (201, 22));
}

#[tokio::test(start_paused = true)]
async fn the_pauses_of_a_call_that_waits_grow_too() {
    // Of 40 pauses of at most 200 ms each, the sum would be 8 s at most; of pauses up to 10 s, it is 170 s or so.
    let wire = Wire::new((0..40).map(|_| problem(409, "in_flight")));
    let layer = IdempotentRetryLayer::new()
        .with_deadline(Duration::from_secs(3600))
        .with_retry_budget(1000, 0.0);
    send(&layer, &wire, post("{}")).await.expect("a response");
    let seen = wire.seen();
    let waited = seen[40].at - seen[0].at;
    assert!(waited > Duration::from_secs(8), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn the_last_answer_is_given_as_it_is_when_attempts_are_used_up() {
    let wire = Wire::new([
        answer(500),
        Step::Fail,
        with_headers(503, &[("x-last", "1")]),
        answer(201),
    ]);
    let layer = IdempotentRetryLayer::new().with_attempts(3);
    let response = send(&layer, &wire, post("{}")).await.expect("a response");
    assert_eq!((response.status().as_u16(), wire.count()), (503, 3));
    assert_eq!(response.headers()["x-last"], "1");
    assert_eq!(delivery(&response).gave_up(), Some(GaveUp::Attempts));
    assert!(delivery(&response).outcome_is_unknown());
    assert_eq!(text(response).await, "done");
}

/// Our policy for Stripe, as its docs describe it.
fn stripe() -> RetryPolicy {
    RetryPolicy::by(|end| {
        if let AttemptEnd::Failed(error) = end {
            assert!(error.is::<client_support::Lost>());
        }
        let AttemptEnd::Answered(answer) = end else {
            return end.by_default();
        };
        let said = answer.headers().get("stripe-should-retry");
        match said.map(|value| value.as_bytes()) {
            Some(b"true") => Decision::Retry,
            Some(b"false") => Decision::Final,
            _ if answer.status() == 409 => Decision::Wait,
            _ => end.by_default(),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_closure_serves_servers_with_other_words() {
    let layer = IdempotentRetryLayer::new().with_policy(stripe());
    for (step, attempts, unknown) in [
        (answer(409), 2, false),
        (
            with_headers(409, &[("stripe-should-retry", "false")]),
            1,
            false,
        ),
        (
            with_headers(400, &[("stripe-should-retry", "true")]),
            2,
            false,
        ),
        (
            with_headers(500, &[("stripe-should-retry", "false")]),
            1,
            true,
        ),
        (answer(402), 1, false),
        (answer(503), 2, false),
        (Step::Fail, 2, false),
    ] {
        let wire = Wire::new([step]);
        let response = send(&layer, &wire, post("{}")).await.expect("a response");
        assert_eq!(wire.count(), attempts);
        assert_eq!(delivery(&response).outcome_is_unknown(), unknown);
    }
}

fn grpc_request() -> Request<Body> {
    let mut request = post("{}");
    *request.uri_mut() = "http://payments.test/payments.Payments/Charge"
        .parse()
        .expect("a URI");
    let value = "application/grpc+proto".parse().expect("a header value");
    request.headers_mut().insert("content-type", value);
    request
}

fn grpc_layer() -> IdempotentRetryLayer {
    IdempotentRetryLayer::new().with_grpc_unary(|path| path == "/payments.Payments/Charge")
}

#[tokio::test(start_paused = true)]
async fn a_grpc_answer_counts_by_its_status() {
    const RETRIED: [&str; 6] = ["2", "4", "8", "13", "14", "not a number"];
    for status in (0..=16)
        .map(|status| status.to_string())
        .chain(["not a number".into()])
    {
        let wire = Wire::new([with_headers(200, &[GRPC, ("grpc-status", &status)])]);
        let response = send(&grpc_layer(), &wire, grpc_request()).await;
        response.expect("a response");
        let attempts = 1 + usize::from(RETRIED.contains(&status.as_str()));
        assert_eq!(wire.count(), attempts, "{status}");
    }
    // A proxy that knows nothing of gRPC.
    let wire = Wire::new([answer(502)]);
    let response = send(&grpc_layer(), &wire, grpc_request()).await;
    response.expect("a response");
    assert_eq!(wire.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_grpc_refusal_counts_by_its_code_and_pushback() {
    for (headers, attempts) in [
        (
            &[("grpc-status", "10"), ("idempotency-code", "in_flight")][..],
            2,
        ),
        (
            &[
                ("grpc-status", "10"),
                ("idempotency-code", "outcome_unknown"),
            ],
            1,
        ),
        (&[("grpc-status", "10")], 1),
        (&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "5")], 2),
        (
            &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "-1")],
            1,
        ),
        (
            &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "soon")],
            1,
        ),
        (&[("grpc-status", "13"), ("idempotent-replayed", "true")], 1),
    ] {
        let headers: Vec<_> = [GRPC].iter().chain(headers).copied().collect();
        let wire = Wire::new([with_headers(200, &headers)]);
        let response = send(&grpc_layer(), &wire, grpc_request()).await;
        response.expect("a response");
        assert_eq!(wire.count(), attempts, "{headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grpc_message_above_the_servers_limit_has_a_known_outcome() {
    for (code, unknown) in [("body_too_large", false), ("another", true)] {
        let headers = [
            GRPC,
            ("grpc-status", "8"),
            ("idempotency-code", code),
            ("grpc-retry-pushback-ms", "-1"),
        ];
        let wire = Wire::new([with_headers(200, &headers)]);
        let response = send(&grpc_layer(), &wire, grpc_request()).await;
        let response = response.expect("a response");
        assert_eq!(delivery(&response).outcome_is_unknown(), unknown, "{code}");
        assert_eq!(wire.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_grpc_call_that_is_not_named_unary_passes_through() {
    for layer in [IdempotentRetryLayer::new(), grpc_layer()] {
        let wire = Wire::new([Step::Fail]);
        let mut request = grpc_request();
        *request.uri_mut() = "http://payments.test/payments.Payments/Watch"
            .parse()
            .expect("a URI");
        let error = send(&layer, &wire, request).await.expect_err("an error");
        assert_eq!((error.attempts(), error.key()), (1, None));
        let seen = wire.seen();
        assert!(!seen[0].head.headers.contains_key("idempotency-key"));
    }
}
