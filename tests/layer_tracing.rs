//! With feature `tracing`: a span for each keyed request, and events for what an operator may want to know.
//!
//! Each test here has its own subscriber from the beginning. Beside tests without one a place that tells something may be taken for
//! one that nobody listens to, if both meet there for the first time.
#![cfg(all(feature = "memory", feature = "tracing"))]
mod support;

use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header};
use support::{
    Body,
    body::{Script, Step},
    capture::Capture,
    database::{Database, End},
    faulty::{Call, Fault, FaultyStore, pass},
    post,
    probe::{Probe, answer, created, spawn_send},
    send,
};
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{
    IdempotencyContext, IdempotencyKey, IdempotencyLayer, MemoryStore, OnInFlight, OnStoreFailure,
    Purger, RecordKey, RequestBody, Scope, ScopeBy, StepError, StoreErrorKind, Verdict,
    store::{Store, StoreKind, Takeover},
};
use tracing::{Instrument, Level};

const KEY: &str = "a-key-that-nobody-may-read";
const TENANT: &str = "a-tenant-that-nobody-may-read";
const UNAVAILABLE: Fault = Fault::Fails(StoreErrorKind::Unavailable);

fn layer(store: impl Store) -> IdempotencyLayer {
    IdempotencyLayer::new(store, ScopeBy::parts(|_| Scope::new(TENANT)))
}

fn keyed() -> Request<Body> {
    post(KEY, "{}")
}

/// As spans and events show it.
fn short_key() -> String {
    let key = IdempotencyKey::new(KEY).expect("a key");
    let scope = Scope::new(TENANT).expect("a scope");
    format!("{:?}", RecordKey::derive("", &scope, &key))
}

/// The events of this crate were these, inside the request's span, and nothing told the key.
fn assert_told(capture: &Capture, expected: &[(Level, &str)]) {
    let expected = expected.iter();
    let expected = expected.map(|(level, message)| (*level, (*message).to_owned(), "idempotency"));
    assert_eq!(capture.events(), expected.collect::<Vec<_>>());
    for (_, message, _) in capture.events() {
        assert_eq!(capture.field(&message, "record_key"), short_key());
    }
    assert_discreet(capture);
}

fn assert_discreet(capture: &Capture) {
    let everything = format!("{capture:?}");
    assert!(everything.contains(&short_key()), "{everything}");
    assert!(!everything.contains("nobody-may-read"), "{everything}");
}

#[tokio::test]
async fn a_run_is_inside_the_span_of_its_request_also_when_spawned_by_a_closure() {
    let (capture, _guard) = Capture::start();
    let layers = [
        layer(MemoryStore::new()),
        layer(MemoryStore::new()).with_detached(false),
        layer(MemoryStore::new()).with_spawn(|run| drop(tokio::spawn(run))),
    ];
    for layer in layers {
        let handler = capture.clone();
        let service = layer.layer(service_fn(move |_: Request<RequestBody<Body>>| {
            let spans = handler.current().join(" in ");
            async move { Ok::<_, &'static str>(answer(StatusCode::CREATED, &spans)) }
        }));
        let request = async { send(&service, keyed()).await };
        let answer = request.instrument(tracing::info_span!("charge")).await;
        assert_eq!(answer.text(), "idempotency in charge");
    }
}

#[tokio::test(start_paused = true)]
async fn the_span_tells_key_attempt_outcome_and_times() {
    let (capture, _guard) = Capture::start();
    let store = FaultyStore::new(MemoryStore::new());
    let slow = Fault::IsSlow(Duration::from_millis(250));
    store.then(Call::Reserve, slow).then(Call::Complete, slow);
    let service =
        layer(store)
            .require_key()
            .layer(service_fn(|_: Request<RequestBody<Body>>| async {
                pass(Duration::from_secs(2)).await;
                Ok::<_, &'static str>(created(1))
            }));
    send(&service, keyed()).await;
    send(&service, keyed()).await;
    send(&service, post("bad key", "{}")).await;

    let spans = capture.requests();
    let fields = |index: usize| {
        [
            "record_key",
            "attempt",
            "outcome",
            "store_seconds",
            "handler_seconds",
        ]
        .map(|field| spans[index].field(field))
    };
    let key = short_key();
    assert_eq!(spans.len(), 3);
    assert_eq!(fields(0), [&key, "1", "saved", "0.5", "2.0"]);
    assert_eq!(fields(1), [&key, "", "replayed", "0.0", ""]);
    assert_eq!(fields(2), ["", "", "invalid_key", "0.0", ""]);
    assert_discreet(&capture);
}

#[tokio::test]
async fn the_span_goes_on_when_the_caller_has_gone() {
    let (capture, _guard) = Capture::start();
    let probe = Probe::new().shut();
    let store = FaultyStore::new(MemoryStore::new());
    let service = layer(store.clone()).layer(probe.service::<Body>());
    let caller = spawn_send(&service, keyed());
    probe.started(1).await;
    caller.abort();
    assert!(caller.await.expect_err("it was aborted").is_cancelled());
    assert_eq!(capture.requests()[0].field("outcome"), "");
    probe.open();
    store.reached(Call::Complete, 1).await;
    send(&service, keyed()).await;
    let outcomes = capture.requests().into_iter();
    let outcomes: Vec<_> = outcomes.map(|span| span.field("outcome")).collect();
    assert_eq!(outcomes, ["saved", "replayed"]);
}

#[tokio::test]
async fn a_request_without_a_key_has_no_span() {
    let (capture, _guard) = Capture::start();
    let service = layer(MemoryStore::new()).layer(Probe::new().service::<Body>());
    let mut request = keyed();
    request.headers_mut().remove("idempotency-key");
    send(&service, request).await;
    assert!(capture.requests().is_empty());
}

#[tokio::test]
async fn a_takeover_is_told() {
    let (capture, _guard) = Capture::start();
    let probe = Probe::answering(|run| Ok(answer(StatusCode::BAD_GATEWAY, &format!("{run}"))));
    let layer = layer(MemoryStore::new()).with_takeover(Takeover::RunAgain);
    let service = layer.layer(probe.service::<Body>());
    send(&service, keyed()).await;
    send(&service, keyed()).await;
    assert_told(
        &capture,
        &[(Level::WARN, "a run of unknown outcome is taken over")],
    );
    assert_eq!(capture.requests()[1].field("attempt"), "2");
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_and_a_lost_claim_are_told() {
    let (capture, _guard) = Capture::start();
    let store = FaultyStore::new(MemoryStore::new());
    store.then(Call::Renew, UNAVAILABLE);
    store.then(Call::Renew, Fault::Fails(StoreErrorKind::LostClaim));
    let probe = Probe::new().shut();
    let service = layer(store).layer(probe.service::<Body>());
    let running = spawn_send(&service, keyed());
    probe.started(1).await;
    let context = probe.context(1);
    while !context.claim_lost() {
        pass(Duration::from_secs(1)).await;
    }
    probe.open();
    running.await.expect("an answer");
    assert_told(
        &capture,
        &[
            (Level::WARN, "the claim was not renewed"),
            (Level::WARN, "the claim was taken over, the run goes on"),
        ],
    );
}

#[tokio::test]
async fn a_failed_complete_is_told() {
    let (capture, _guard) = Capture::start();
    let store = FaultyStore::new(MemoryStore::new());
    store.then(Call::Complete, UNAVAILABLE);
    let service = layer(store).layer(Probe::new().service::<Body>());
    send(&service, keyed()).await;
    assert_told(&capture, &[(Level::WARN, "the claim was not settled")]);
    let error = capture.field("the claim was not settled", "error");
    assert_eq!(error, "the store can't be reached");
    assert_eq!(capture.requests()[0].field("outcome"), "owed");
}

#[tokio::test]
async fn an_unprotected_run_is_told_and_whether_it_was_saved() {
    for (complete, saved) in [(None, "true"), (Some(UNAVAILABLE), "false")] {
        let (capture, _guard) = Capture::start();
        let store = FaultyStore::new(MemoryStore::new());
        store.then(Call::Reserve, UNAVAILABLE);
        if let Some(fault) = complete {
            store.then(Call::Complete, fault);
        }
        let layer = layer(store).with_on_store_failure(OnStoreFailure::RunUnprotected);
        send(&layer.layer(Probe::new().service::<Body>()), keyed()).await;
        assert_told(
            &capture,
            &[
                (Level::WARN, "the store failed to reserve a key"),
                (Level::WARN, "the handler runs unprotected"),
                (Level::WARN, "an unprotected run ended"),
            ],
        );
        assert_eq!(capture.field("an unprotected run ended", "saved"), saved);
        assert_eq!(capture.requests()[0].field("outcome"), "unprotected");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tombstone_is_told_with_its_reason() {
    for reason in ["too_large", "too_slow", "stream", "policy"] {
        let (capture, _guard) = Capture::start();
        let handler = service_fn(move |_: Request<RequestBody<Body>>| async move {
            let mut response = Response::new(Script::new([match reason {
                "too_large" => Step::Data("more than ten bytes"),
                "too_slow" => Step::Hang,
                _ => Step::Data("short"),
            }]));
            if reason == "stream" {
                let stream = HeaderValue::from_static("text/event-stream");
                response.headers_mut().insert(header::CONTENT_TYPE, stream);
            }
            if reason == "policy" {
                response.extensions_mut().insert(Verdict::Tombstone);
            }
            Ok::<_, &'static str>(response)
        });
        let layer = layer(MemoryStore::new()).with_response_body_limit(10);
        let response = layer.layer(handler).oneshot(keyed()).await;
        drop(response.expect("a response"));
        assert_told(&capture, &[(Level::INFO, "the response is not kept")]);
        assert_eq!(capture.field("the response is not kept", "reason"), reason);
        assert_eq!(capture.requests()[0].field("outcome"), "not_kept");
    }
}

#[tokio::test]
async fn a_full_memory_store_tells_what_it_does_not_keep() {
    let (capture, _guard) = Capture::start();
    let store = MemoryStore::new().with_max_bytes(1);
    let service = layer(store).layer(Probe::new().service::<Body>());
    for _ in 0..2 {
        send(&service, keyed()).await;
    }
    assert_told(&capture, &[(Level::INFO, "the response is not kept")]);
    let reason = capture.field("the response is not kept", "reason");
    assert_eq!(reason, "store_full");
}

#[tokio::test]
async fn an_outcome_that_is_pending_is_told() {
    let (capture, _guard) = Capture::start();
    let store = FaultyStore::of_kind(MemoryStore::new(), StoreKind::Transaction);
    store.always(
        Call::Complete,
        Fault::LosesAnswer(StoreErrorKind::OutcomeUnknown),
    );
    let service = layer(store).layer(Probe::new().service::<Body>());
    send(&service, keyed()).await;
    assert_told(
        &capture,
        &[
            (Level::WARN, "the claim was not settled"),
            (
                Level::ERROR,
                "whether the operation took effect is not known yet",
            ),
        ],
    );
    assert_eq!(capture.requests()[0].field("outcome"), "outcome_pending");
}

#[tokio::test]
async fn a_store_that_fails_a_waiter_is_told() {
    let (capture, _guard) = Capture::start();
    let store = FaultyStore::new(MemoryStore::new());
    let probe = Probe::new().shut();
    let service = layer(store.clone())
        .with_on_in_flight(OnInFlight::Wait(Duration::from_secs(60)))
        .layer(probe.service::<Body>());
    let running = spawn_send(&service, keyed());
    probe.started(1).await;
    store.then(Call::Inspect, UNAVAILABLE);
    send(&service, keyed()).await;
    probe.open();
    running.await.expect("an answer");
    let told = (Level::WARN, "the store failed to tell what is recorded");
    assert_told(&capture, &[told]);
}

#[tokio::test(start_paused = true)]
async fn each_retry_is_told() {
    let (capture, _guard) = Capture::start();
    let (database, probe) = (Database::new(), Probe::new());
    database.lose(End::Complete, 2);
    let service = layer(database)
        .with_transaction_retries(3)
        .layer(probe.service::<Body>());
    assert_eq!(send(&service, keyed()).await.text(), "run 3");
    let message = "the transaction lost against another one, the handler runs again";
    let lost = (Level::WARN, "the claim was not settled");
    let again = (Level::INFO, message);
    assert_told(&capture, &[lost, again, lost, again]);
    assert_eq!(capture.field(message, "retry"), "1");
}

#[tokio::test(start_paused = true)]
async fn notes_that_cant_be_written_or_read_are_told() {
    let (capture, _guard) = Capture::start();
    let store = FaultyStore::new(MemoryStore::new());
    store
        .then(Call::Note, UNAVAILABLE)
        .then(Call::Notes, UNAVAILABLE);
    let service = layer(store)
        .with_takeover(Takeover::RunAgain)
        .layer(service_fn(
            |request: Request<RequestBody<Body>>| async move {
                let context = request.extensions().get::<IdempotencyContext>();
                let effect = async || Ok::<u8, StepError>(1);
                let step = context.expect("a run").step("a step", effect).await;
                assert_eq!(step.is_ok(), context.expect("a run").attempt() == 1);
                Ok::<_, &'static str>(answer(StatusCode::BAD_GATEWAY, ""))
            },
        ));
    send(&service, keyed()).await;
    send(&service, keyed()).await;

    assert_told(
        &capture,
        &[
            (Level::WARN, "a step was done and is not noted"),
            (Level::WARN, "a run of unknown outcome is taken over"),
            (
                Level::WARN,
                "the store failed to tell what an earlier run has done",
            ),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_purged_and_what_failed_is_told() {
    let (capture, _guard) = Capture::start();
    let store = FaultyStore::new(MemoryStore::new());
    let minute = Duration::from_secs(60);
    let service = layer(store.clone())
        .with_retention(minute)
        .layer(Probe::new().service::<Body>());
    for number in 0..5 {
        send(&service, post(&number.to_string(), "{}")).await;
    }
    pass(minute).await;
    store.then(Call::Purge, UNAVAILABLE);
    let purger = Purger::new(store.clone()).spawn();
    store.reached(Call::Purge, 3).await;
    purger.stop().await;
    let failed = "expired records were not purged";
    let purged = "expired records were purged";
    assert_eq!(
        capture.events(),
        [
            (Level::WARN, failed.to_owned(), "none"),
            (Level::DEBUG, purged.to_owned(), "none"),
        ]
    );
    assert_eq!(capture.field(failed, "error"), "the store can't be reached");
    assert_eq!(capture.field(purged, "count"), "5");
}
