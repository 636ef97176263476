//! `with_expiry_header`: how long the key is kept yet, on each answer that tells that the operation is done, and on no other.
#![cfg(feature = "memory")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use support::{
    Answer, Body, Runs,
    faulty::{Call, Fault, FaultyStore},
    handler::{answering, layer, response},
    post,
    probe::{Probe, spawn_send},
    send,
};
use tokio::time::advance;
use tower::Layer;
use tower_idempotency::{
    Drain, IdempotencyLayer, MemoryStore, OnInFlight, OnStoreFailure, RejectionKind,
    StoreErrorKind, Verdict, defaults::EXPIRY_HEADER, store::Store,
};

const HOUR: Duration = Duration::from_secs(3600);
const MILLISECOND: Duration = Duration::from_millis(1);

fn telling(store: impl Store) -> IdempotencyLayer {
    layer(store)
        .with_retention(HOUR)
        .with_expiry_header(EXPIRY_HEADER)
}

/// What the header says; one line of it at most.
fn expires_in(answer: &Answer) -> Option<&str> {
    let mut lines = answer.head.headers.get_all(EXPIRY_HEADER).iter();
    let line = lines.next();
    assert_eq!(lines.next(), None, "two lines");
    line.map(|line| line.to_str().expect("a number"))
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_tells_the_retention_and_a_replay_what_is_left_of_it() {
    let probe = Probe::new();
    let service = telling(MemoryStore::new()).layer(probe.service::<Body>());
    let first = send(&service, post("k", "{}")).await;
    assert_eq!(
        (expires_in(&first), first.is_replay()),
        (Some("3600"), false)
    );
    for (passed, left) in [
        (Duration::ZERO, "3600"),
        (MILLISECOND, "3599"),
        (HOUR / 2, "1799"),
        (HOUR / 2 - MILLISECOND * 2, "0"),
    ] {
        advance(passed).await;
        let replay = send(&service, post("k", "{}")).await;
        assert!(replay.is_replay());
        assert_eq!(expires_in(&replay), Some(left));
    }
    assert_eq!(probe.runs(), 1);

    // The operation runs again from the very end of what was told, and not before.
    advance(MILLISECOND).await;
    let anew = send(&service, post("k", "{}")).await;
    assert_eq!((anew.text(), expires_in(&anew)), ("run 2", Some("3600")));
}

#[tokio::test]
async fn no_answer_has_the_header_unless_the_layer_was_told_to() {
    let probe = Probe::new();
    let service = layer(MemoryStore::new()).layer(probe.service::<Body>());
    for replayed in [false, true] {
        let answer = send(&service, post("k", "{}")).await;
        assert_eq!((answer.is_replay(), expires_in(&answer)), (replayed, None));
    }
}

#[tokio::test(start_paused = true)]
async fn what_leaves_no_finished_record_has_no_header() {
    for status in [400, 404, 408, 500, 503] {
        let status = StatusCode::from_u16(status).expect("a status");
        let handler = answering(&Runs::default(), move |_, _, _| response(status, ""));
        let service = telling(MemoryStore::new()).layer(handler);
        let answer = send(&service, post("k", "{}")).await;
        assert_eq!((answer.status(), expires_in(&answer)), (status, None));
    }

    let probe = Probe::new().shut();
    let service = telling(MemoryStore::new()).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    for (request, kind) in [
        (post("k", "{}"), RejectionKind::InFlight),
        (post("k", "[]"), RejectionKind::KeyReused),
        (post("", "{}"), RejectionKind::InvalidKey),
    ] {
        let refused = send(&service, request).await;
        assert_eq!(refused.rejection(), Some(kind));
        assert_eq!(expires_in(&refused), None);
    }
    probe.open();
    let first = first.await.expect("an answer");
    assert_eq!(expires_in(&first), Some("3600"));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_done_without_a_response_tells_it_too() {
    let handler = answering(&Runs::default(), |_, _, _| {
        let mut response = response(StatusCode::CREATED, "secret");
        response.extensions_mut().insert(Verdict::Tombstone);
        response
    });
    let service = telling(MemoryStore::new())
        .with_rejection(|rejection| Response::new(Bytes::from(rejection.kind().code())))
        .layer(handler);
    let first = send(&service, post("k", "{}")).await;
    assert_eq!((first.text(), expires_in(&first)), ("secret", Some("3600")));
    advance(MILLISECOND).await;
    let refused = send(&service, post("k", "{}")).await;
    assert_eq!(refused.text(), "response_not_kept");
    assert_eq!(expires_in(&refused), Some("3599"));
}

#[tokio::test(start_paused = true)]
async fn a_header_of_the_handlers_own_reaches_nobody() {
    for status in [StatusCode::CREATED, StatusCode::NOT_FOUND] {
        let store = MemoryStore::new();
        let answer = move || {
            let mut response = response(status, "");
            let line = HeaderValue::from_static("86400");
            response.headers_mut().append(EXPIRY_HEADER, line.clone());
            response.headers_mut().append(EXPIRY_HEADER, line);
            response
        };
        let handler = answering(&Runs::default(), move |_, _, _| answer());
        let told = telling(store.clone()).layer(handler.clone());
        let first = send(&told, post("k", "{}")).await;
        let expected = (status == StatusCode::CREATED).then_some("3600");
        assert_eq!(expires_in(&first), expected);

        // Nor is it saved: a layer without the setting would replay it.
        let silent = layer(store).layer(handler);
        let replay = send(&silent, post("k", "{}")).await;
        let is_saved = status == StatusCode::CREATED;
        assert_eq!(replay.is_replay(), is_saved);
        assert_eq!(replay.head.headers.contains_key(EXPIRY_HEADER), !is_saved);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_what_is_left() {
    let probe = Probe::new().shut();
    let store = FaultyStore::new(MemoryStore::new());
    let service = telling(store.clone())
        .with_on_in_flight(OnInFlight::Wait(HOUR))
        .layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let waiter = spawn_send(&service, post("k", "{}"));
    store.reached(Call::Inspect, 1).await;
    probe.open();
    for (sent, replayed) in [(first, false), (waiter, true)] {
        let answer = sent.await.expect("an answer");
        assert_eq!(answer.is_replay(), replayed);
        assert_eq!(expires_in(&answer), Some("3600"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_the_store_has_not_heard_of_promises_nothing() {
    let store = FaultyStore::new(MemoryStore::new());
    store.then(Call::Complete, Fault::Fails(StoreErrorKind::Unavailable));
    let (drain, probe) = (Drain::new(), Probe::new());
    let service = telling(store)
        .with_drain(drain.clone())
        .layer(probe.service::<Body>());
    let first = send(&service, post("k", "{}")).await;
    assert_eq!((first.text(), expires_in(&first)), ("run 1", None));
    assert_eq!(drain.wait(HOUR).await, 0);
    let replay = send(&service, post("k", "{}")).await;
    assert_eq!(
        (replay.text(), expires_in(&replay)),
        ("run 1", Some("3600"))
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_promises_no_more_than_the_record_has_when_the_store_is_slow() {
    let store = FaultyStore::new(MemoryStore::new());
    store.then(Call::Complete, Fault::AnswersLate);
    let probe = Probe::new();
    let service = telling(store.clone()).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    store.reached(Call::Complete, 1).await;
    advance(Duration::from_secs(4)).await;
    store.let_go();
    let first = first.await.expect("an answer");
    assert_eq!(expires_in(&first), Some("3596"));
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_run_promises_nothing() {
    for fault in [None, Some(Fault::Fails(StoreErrorKind::Unavailable))] {
        let store = FaultyStore::new(MemoryStore::new());
        store.then(Call::Reserve, Fault::Fails(StoreErrorKind::Unavailable));
        if let Some(fault) = fault {
            store.always(Call::Complete, fault);
        }
        let probe = Probe::new();
        let service = telling(store)
            .with_on_store_failure(OnStoreFailure::RunUnprotected)
            .layer(probe.service::<Body>());
        let answer = send(&service, post("k", "{}")).await;
        assert_eq!((answer.text(), expires_in(&answer)), ("run 1", None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_is_answered_with_what_is_left_of_the_record() {
    let store = FaultyStore::new(MemoryStore::new());
    let probe = Probe::new().shut();
    let service = telling(store.clone()).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let forgotten = store.forget(probe.context(1).record_key()).await;
    assert!(forgotten.expect("the store answers"));
    let second = spawn_send(&service, post("k", "{}"));
    probe.started(2).await;
    probe.let_through(2);
    assert_eq!(second.await.expect("an answer").text(), "run 2");

    advance(MILLISECOND).await;
    probe.open();
    let first = first.await.expect("an answer");
    assert_eq!((first.text(), first.is_replay()), ("run 2", true));
    assert_eq!(expires_in(&first), Some("3599"));
}

#[tokio::test(start_paused = true)]
async fn the_header_can_have_another_name() {
    let name = HeaderName::from_static("x-key-expires-in");
    let probe = Probe::new();
    let service = telling(MemoryStore::new())
        .with_expiry_header(name.clone())
        .layer(probe.service::<Body>());
    for _ in 0..2 {
        let answer = send(&service, post("k", "{}")).await;
        assert_eq!(
            (&answer.head.headers[&name], expires_in(&answer)),
            (&HeaderValue::from(3600), None)
        );
    }
}
