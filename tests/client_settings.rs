//! Settings of the client layer that contradict each other are found when it is applied, and named.
#![cfg(feature = "client")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use http::{Method, header};
use tower::Layer;
use tower_idempotency::client::IdempotentRetryLayer;

type Setting = fn(IdempotentRetryLayer) -> IdempotentRetryLayer;

const ZERO: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::MAX;

/// What applying the layer panics with.
fn panic_of(layer: &IdempotentRetryLayer) -> Option<String> {
    let applied = catch_unwind(AssertUnwindSafe(|| drop(layer.layer(()))));
    applied
        .err()
        .map(|payload| match payload.downcast::<String>() {
            Ok(text) => *text,
            Err(payload) => (*payload.downcast::<&str>().expect("a text")).to_owned(),
        })
}

/// What is set, and what the message must name.
const CONTRADICTIONS: [(Setting, &str); 20] = [
    (|layer| layer.with_attempts(0), "with_attempts"),
    (
        |layer| layer.with_attempt_timeout(ZERO),
        "with_attempt_timeout",
    ),
    (|layer| layer.with_deadline(ZERO), "with_deadline"),
    (|layer| layer.with_deadline(MAX), "with_deadline"),
    (
        |layer| layer.with_deadline(SECOND).with_attempt_timeout(2 * SECOND),
        "with_attempt_timeout (2s)",
    ),
    (
        |layer| layer.with_attempt_timeout(MAX),
        "with_attempt_timeout",
    ),
    (|layer| layer.with_backoff(ZERO, SECOND), "with_backoff"),
    (|layer| layer.with_backoff(SECOND, MAX), "with_backoff"),
    (
        |layer| layer.with_backoff(2 * SECOND, SECOND),
        "with_backoff",
    ),
    (|layer| layer.with_max_key_age(ZERO), "with_max_key_age"),
    (|layer| layer.with_max_key_age(MAX), "with_max_key_age"),
    (|layer| layer.with_methods([]), "with_methods"),
    (
        |layer| layer.with_methods([Method::POST, Method::GET]),
        "with_methods",
    ),
    (
        |layer| layer.with_header(header::CONTENT_LENGTH),
        "with_header(content-length)",
    ),
    (|layer| layer.with_header(header::TE), "with_header(te)"),
    (
        |layer| layer.with_replay_marker(header::CONNECTION),
        "with_replay_marker",
    ),
    (
        |layer| layer.with_retry_budget(1, -0.1),
        "with_retry_budget",
    ),
    (
        |layer| layer.with_retry_budget(1, 1000.1),
        "with_retry_budget",
    ),
    (
        |layer| layer.with_retry_budget(1, f32::NAN),
        "with_retry_budget",
    ),
    (
        |layer| layer.with_retry_budget(u32::MAX, 0.1),
        "with_retry_budget",
    ),
];

#[test]
fn a_contradiction_is_found_and_named() {
    for (number, (set, name)) in CONTRADICTIONS.into_iter().enumerate() {
        let panic = panic_of(&set(IdempotentRetryLayer::new()));
        let message = panic.unwrap_or_else(|| panic!("{number}: {name} was accepted"));
        assert!(message.contains(name), "{number}: {message}");
    }
}

#[test]
fn what_is_unusual_but_consistent_is_accepted() {
    const ACCEPTED: [Setting; 7] = [
        |layer| layer,
        |layer| layer.with_attempts(1),
        |layer| layer.with_deadline(SECOND),
        |layer| layer.with_deadline(SECOND).with_attempt_timeout(SECOND),
        |layer| layer.with_backoff(SECOND, SECOND),
        |layer| layer.with_request_body_limit(0).with_response_body_limit(0),
        |layer| layer.with_retry_budget(0, 0.0),
    ];
    for (number, set) in ACCEPTED.into_iter().enumerate() {
        assert_eq!(
            panic_of(&set(IdempotentRetryLayer::new())),
            None,
            "{number}"
        );
    }
}
