//! Settings that contradict each other are found when the layer is applied, and named.
#![cfg(feature = "memory")]

mod support;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use http::{Method, header, request::Parts};
use support::{handler::layer, spy::Spy};
use tower::Layer;
use tower_idempotency::{
    FingerprintBy, IdempotencyLayer, KeyBy, KeyFormat, MemoryStore, OnInFlight, OnStoreFailure,
    store::StoreKind,
};

type Setting = fn(IdempotencyLayer) -> IdempotencyLayer;

const ZERO: Duration = Duration::ZERO;
const MAX: Duration = Duration::MAX;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What applying the layer panics with.
fn panic_of(idempotency: &IdempotencyLayer) -> Option<String> {
    let applied = catch_unwind(AssertUnwindSafe(|| drop(idempotency.layer(()))));
    applied
        .err()
        .map(|payload| match payload.downcast::<String>() {
            Ok(text) => *text,
            Err(payload) => (*payload.downcast::<&str>().expect("a text")).to_owned(),
        })
}

fn of_kind(kind: StoreKind) -> IdempotencyLayer {
    layer(Spy::over(MemoryStore::new(), kind))
}

/// What is set, and what the message must name.
const CONTRADICTIONS: [(Setting, &[&str]); 32] = [
    (
        |layer| layer.with_settlement_bounds(0, 1),
        &["with_settlement_bounds"],
    ),
    (
        |layer| layer.with_settlement_bounds(1, 0),
        &["with_settlement_bounds"],
    ),
    (
        |layer| layer.with_late_call_bound(0),
        &["with_late_call_bound"],
    ),
    (
        |layer| layer.with_saved_header(header::CONNECTION),
        &["with_saved_header(connection)"],
    ),
    (
        |layer| layer.with_saved_header(header::PROXY_AUTHENTICATE),
        &["with_saved_header(proxy-authenticate)"],
    ),
    (
        |layer| {
            let layer = layer.with_saved_header(header::DATE);
            layer.with_dropped_header(header::DATE)
        },
        &["with_saved_header", "with_dropped_header", "date"],
    ),
    (
        |layer| layer.with_replay_marker(header::CONTENT_LENGTH),
        &["with_replay_marker(content-length)"],
    ),
    (
        |layer| layer.with_expiry_header(header::TRAILER),
        &["with_expiry_header(trailer)"],
    ),
    (
        |layer| {
            layer
                .with_expiry_header(header::AGE)
                .with_replay_marker(header::AGE)
        },
        &["with_expiry_header", "with_replay_marker", "age"],
    ),
    (|layer| layer.with_lease(ZERO), &["with_lease"]),
    (
        |layer| layer.with_lease(MAX).with_retention(MAX),
        &["with_lease"],
    ),
    (|layer| layer.with_retention(ZERO), &["with_retention"]),
    (|layer| layer.with_retention(MAX), &["with_retention"]),
    (|layer| layer.with_run_limit(ZERO), &["with_run_limit"]),
    (|layer| layer.with_run_limit(MAX), &["with_run_limit"]),
    (
        |layer| layer.with_collect_limit(ZERO),
        &["with_collect_limit"],
    ),
    (
        |layer| layer.with_collect_limit(MAX),
        &["with_collect_limit"],
    ),
    (
        |layer| layer.with_store_call_limit(ZERO),
        &["with_store_call_limit"],
    ),
    (
        |layer| layer.with_store_call_limit(MAX),
        &["with_store_call_limit"],
    ),
    (
        |layer| layer.with_retention(seconds(29)),
        &["with_retention (29s)", "with_lease (30s)"],
    ),
    (
        |layer| {
            layer
                .with_lease(seconds(30))
                .with_store_call_limit(seconds(11))
        },
        &["with_store_call_limit (11s)", "with_lease (30s)"],
    ),
    (
        |layer| layer.with_on_in_flight(OnInFlight::Wait(ZERO)),
        &["with_on_in_flight"],
    ),
    (
        |layer| layer.with_on_in_flight(OnInFlight::Wait(MAX)),
        &["with_on_in_flight"],
    ),
    (
        |layer| layer.with_key_format(KeyFormat::default().with_max_length(0)),
        &["with_key_format"],
    ),
    (
        |layer| layer.with_key_format(KeyFormat::default().with_max_length(256)),
        &["with_key_format"],
    ),
    (
        |layer| layer.with_key_format(KeyFormat::default().with_min_length(256)),
        &["with_key_format"],
    ),
    (
        |layer| layer.with_key_format(KeyFormat::uuid().with_max_length(35)),
        &["with_key_format"],
    ),
    (
        |layer| layer.with_key_format(KeyFormat::uuid().with_min_length(37)),
        &["with_key_format"],
    ),
    (
        |layer| layer.with_transaction_retries(1),
        &["with_transaction_retries", "transaction store"],
    ),
    (|layer| layer.with_methods([]), &["with_methods"]),
    (
        |layer| layer.with_methods([Method::POST, Method::GET]),
        &["with_methods"],
    ),
    (
        |layer| layer.with_methods([Method::HEAD]),
        &["with_methods"],
    ),
];

#[test]
fn a_contradiction_panics_naming_its_settings() {
    for (number, (set, names)) in CONTRADICTIONS.into_iter().enumerate() {
        let message = panic_of(&set(layer(MemoryStore::new())));
        let message = message.unwrap_or_else(|| panic!("case {number} ({names:?}) was accepted"));
        for name in names {
            assert!(message.contains(name), "case {number}: {message}");
        }
    }
}

#[test]
fn the_defaults_and_the_bounds_themselves_are_accepted() {
    let cases: [Setting; 6] = [
        |layer| layer,
        |layer| layer.with_lease(seconds(30)).with_retention(seconds(30)),
        |layer| {
            layer
                .with_lease(seconds(30))
                .with_store_call_limit(seconds(10))
        },
        // The default limit of a store call follows the lease.
        |layer| layer.with_lease(Duration::from_millis(3)),
        |layer| layer.with_key_format(KeyFormat::uuid().with_min_length(36).with_max_length(36)),
        |layer| layer.with_on_in_flight(OnInFlight::Wait(Duration::from_millis(1))),
    ];
    for set in cases {
        for kind in [StoreKind::Lease, StoreKind::Transaction] {
            assert_eq!(panic_of(&set(of_kind(kind))), None);
        }
    }
}

#[test]
fn some_settings_depend_on_the_kind_of_store() {
    let unprotected: Setting = |layer| layer.with_on_store_failure(OnStoreFailure::RunUnprotected);
    let retries: Setting = |layer| layer.with_transaction_retries(1);
    let slow_calls: Setting = |layer| layer.with_store_call_limit(seconds(60));

    assert_eq!(panic_of(&unprotected(of_kind(StoreKind::Lease))), None);
    let refused = panic_of(&unprotected(of_kind(StoreKind::Transaction)));
    assert!(refused.is_some_and(|message| message.contains("with_on_store_failure")));

    assert_eq!(panic_of(&retries(of_kind(StoreKind::Transaction))), None);
    let refused = panic_of(&retries(of_kind(StoreKind::Lease)));
    assert!(refused.is_some_and(|message| message.contains("with_transaction_retries")));

    assert_eq!(panic_of(&slow_calls(of_kind(StoreKind::Transaction))), None);
    assert!(panic_of(&slow_calls(of_kind(StoreKind::Lease))).is_some());
}

#[test]
fn a_handler_runs_again_only_with_a_body_that_was_collected() {
    let event_id = |_: &Parts, body: &[u8]| String::from_utf8(body.to_vec()).ok();
    for (collected, set) in [
        (true, layer_with(|layer| layer)),
        (
            true,
            layer_with(|layer| layer.with_fingerprint(FingerprintBy::json())),
        ),
        (
            true,
            layer_with(move |layer| layer.with_key(KeyBy::body(event_id))),
        ),
        (
            false,
            layer_with(|layer| layer.with_fingerprint(FingerprintBy::head_only())),
        ),
    ] {
        let refused = panic_of(&set.clone().with_transaction_retries(1));
        assert_eq!(panic_of(&set), None);
        match refused {
            None => assert!(collected),
            Some(message) => {
                assert!(!collected, "{message}");
                for name in ["with_transaction_retries", "with_fingerprint"] {
                    assert!(message.contains(name), "{message}");
                }
            }
        }
    }
}

fn layer_with(set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> IdempotencyLayer {
    set(of_kind(StoreKind::Transaction))
}

#[test]
fn settings_are_recorded_in_any_order_and_only_judged_together() {
    let shorter_first = layer(MemoryStore::new())
        .with_retention(seconds(10))
        .with_lease(seconds(5));
    assert_eq!(panic_of(&shorter_first), None);
}
