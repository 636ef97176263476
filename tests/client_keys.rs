//! One key for each call: made once, or the caller's, and the same on all attempts.
#![cfg(feature = "client")]

mod client_support;

use std::collections::HashSet;

use client_support::{Body, Step, Wire, answer, delivery, post, send};
use http::{HeaderName, Method, Request};
use tower_idempotency::{
    IdempotencyKey,
    client::{Delivery, ErrorKind, IdempotentRetryLayer},
};
use uuid::Uuid;

#[tokio::test(start_paused = true)]
async fn a_call_has_one_key_on_all_attempts() {
    let wire = Wire::new([Step::Fail, Step::Hang, answer(503)]);

    let response = send(&IdempotentRetryLayer::new(), &wire, post("{}")).await;

    let response = response.expect("a response");
    let seen = wire.seen();
    assert_eq!(seen.len(), 4);
    let key = seen[0].key();
    assert_eq!(Uuid::parse_str(key).expect("a UUID").get_version_num(), 4);
    assert!(seen.iter().all(|attempt| attempt.key() == key));
    let delivery = delivery(&response);
    assert_eq!(delivery.key().as_str(), key);
    assert_eq!(delivery.attempts(), 4);
    assert!(!delivery.is_replay());
    assert_eq!(delivery.gave_up(), None);
}

#[tokio::test(start_paused = true)]
async fn two_calls_never_share_a_key() {
    let wire = Wire::new([]);
    let layer = IdempotentRetryLayer::new();
    // All at the same instant: the time is paused, and no attempt takes any.
    for _ in 0..100 {
        send(&layer, &wire, post("{}")).await.expect("a response");
    }
    let seen = wire.seen();
    let keys: HashSet<_> = seen.iter().map(|attempt| attempt.key()).collect();
    assert_eq!(keys.len(), 100);
    assert!(seen.iter().all(|attempt| attempt.at == seen[0].at));
}

#[tokio::test(start_paused = true)]
async fn a_key_in_the_header_wins_and_is_sent_as_it_is() {
    for (value, key) in [
        ("order-17", "order-17"),
        ("\"order-17\"", "order-17"),
        ("\"a, b\\\"c\"; p=1", ""),
        ("\"a,b\\\"c\"; p=1", "a,b\"c"),
    ] {
        let wire = Wire::new([answer(503)]);
        let mut request = post("{}");
        let header = value.parse().expect("a header value");
        request.headers_mut().insert("idempotency-key", header);

        let response = send(&IdempotentRetryLayer::new(), &wire, request).await;

        if key.is_empty() {
            // A space is no part of a key.
            let error = response.expect_err("an error");
            assert_eq!(error.kind(), ErrorKind::InvalidKey);
            continue;
        }
        let response = response.expect("a response");
        assert_eq!(delivery(&response).key().as_str(), key);
        let seen = wire.seen();
        assert_eq!(seen.len(), 2);
        assert!(seen.iter().all(|attempt| attempt.key() == value));
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_in_the_extensions_wins_and_is_written_as_a_server_reads_it() {
    let bare = IdempotentRetryLayer::new();
    let quoting = IdempotentRetryLayer::new().quote_keys();
    for (key, layer, sent) in [
        ("order-17", &bare, "order-17"),
        ("order-17", &quoting, "\"order-17\""),
        ("a\\b", &bare, "a\\b"),
        ("a\\b", &quoting, "\"a\\\\b\""),
        // No bare key has a comma or a quote: they would make two of it.
        ("a,b", &bare, "\"a,b\""),
        ("a\"b", &bare, "\"a\\\"b\""),
    ] {
        let wire = Wire::new([Step::Fail]);
        let key = IdempotencyKey::new(key).expect("a key");
        let mut request = post("{}");
        request.extensions_mut().insert(key.clone());

        let response = send(layer, &wire, request).await.expect("a response");

        assert_eq!(delivery(&response).key(), &key);
        let seen = wire.seen();
        assert_eq!(seen.len(), 2);
        assert!(seen.iter().all(|attempt| attempt.key() == sent));
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_sent_is_an_error_and_nothing_is_sent() {
    let long = "k".repeat(256);
    let cases: [&[&str]; 7] = [
        &[""],
        &["a b"],
        &["a,b"],
        &["\"a"],
        &[&long],
        &["a", "a"],
        &["a", "b"],
    ];
    for lines in cases {
        let wire = Wire::new([]);
        let mut request = post("{}");
        for line in lines {
            let value = line.parse().expect("a header value");
            request.headers_mut().append("idempotency-key", value);
        }
        let error = send(&IdempotentRetryLayer::new(), &wire, request).await;

        let error = error.expect_err("an error");
        assert_eq!(error.kind(), ErrorKind::InvalidKey, "{lines:?}");
        assert_eq!((error.attempts(), error.key()), (0, None));
        assert!(!error.outcome_is_unknown());
        assert!(std::error::Error::source(&error).is_some());
        assert_eq!(wire.count(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn two_different_keys_in_header_and_extension_are_an_error() {
    for (other, kind) in [("b", Some(ErrorKind::InvalidKey)), ("a", None)] {
        let wire = Wire::new([]);
        let mut request = post("{}");
        let header = "\"a\"".parse().expect("a header value");
        request.headers_mut().insert("idempotency-key", header);
        let extension = IdempotencyKey::new(other).expect("a key");
        request.extensions_mut().insert(extension);

        let response = send(&IdempotentRetryLayer::new(), &wire, request).await;

        assert_eq!(response.as_ref().err().map(|error| error.kind()), kind);
        assert_eq!(wire.count(), usize::from(kind.is_none()));
    }
}

#[tokio::test(start_paused = true)]
async fn the_header_has_another_name_where_the_server_wants_it() {
    let wire = Wire::new([Step::Fail]);
    let name = HeaderName::from_static("x-request-token");
    let layer = IdempotentRetryLayer::new().with_header(name.clone());
    let response = send(&layer, &wire, post("{}")).await.expect("a response");
    for attempt in wire.seen() {
        assert_eq!(
            attempt.head.headers[&name],
            *delivery(&response).key().as_str()
        );
        assert!(!attempt.head.headers.contains_key("idempotency-key"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_safe_method_passes_through_without_a_key_and_is_sent_once() {
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
        let wire = Wire::new([answer(503), Step::Fail]);
        let request = || {
            let mut request = Request::new(Body::default());
            *request.method_mut() = method.clone();
            // Not even the caller's, which may have come here by a redirect.
            request.extensions_mut().insert(IdempotencyKey::random());
            request
        };
        let layer = IdempotentRetryLayer::new();

        let response = send(&layer, &wire, request()).await.expect("a response");
        let error = send(&layer, &wire, request()).await.expect_err("an error");

        assert_eq!(response.status(), 503);
        assert!(response.extensions().get::<Delivery>().is_none());
        assert_eq!((error.kind(), error.attempts()), (ErrorKind::Service, 1));
        assert_eq!(error.key(), None);
        let seen = wire.seen();
        assert_eq!(seen.len(), 2);
        let keyed = |headers: &http::HeaderMap| headers.contains_key("idempotency-key");
        assert!(!seen.iter().any(|attempt| keyed(&attempt.head.headers)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_methods_that_engage_can_be_chosen() {
    let layer = IdempotentRetryLayer::new().with_methods([Method::DELETE]);
    for (method, attempts) in [(Method::POST, 1), (Method::DELETE, 2)] {
        let wire = Wire::new([answer(503)]);
        let mut request = post("{}");
        *request.method_mut() = method;
        send(&layer, &wire, request).await.expect("a response");
        assert_eq!(wire.count(), attempts);
    }
}
