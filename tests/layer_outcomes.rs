//! What became of a request: in the response's extensions, and told to an observer once, whatever end the request came to.
#![cfg(feature = "memory")]
mod support;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, StatusCode};
use support::{
    Body,
    database::{Database, End},
    faulty::{Call, Fault, FaultyStore, pass},
    handler::layer,
    post,
    probe::{Probe, answer, created, spawn_send},
    send,
};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{
    FingerprintBy, IdempotencyLayer, KeyBy, MemoryStore, Observation, OnInFlight, OnStoreFailure,
    Outcome::{self, Abandoned, NotKept, Owed, Refused, Released, Replayed, Saved, Unprotected},
    RejectionKind::{
        self, HandlerFailed, InFlight, InvalidKey, KeyReused, MissingKey, NotCommitted,
        OutcomePending, OutcomeUnknown, ResponseNotKept, StoreFull, StoreUnavailable,
    },
    RequestBody, StoreErrorKind, Verdict,
    store::{StoreKind, Takeover},
};

const UNAVAILABLE: Fault = Fault::Fails(StoreErrorKind::Unavailable);

/// What the observer was told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Observation>>>, Arc<Notify>);

impl Told {
    fn observer(&self) -> impl Fn(&Observation) + Send + Sync + 'static + use<> {
        let told = self.clone();
        move |observation| {
            let mut all = told.0.lock().expect("a lock");
            all.push(observation.clone());
            told.1.notify_one();
        }
    }

    fn all(&self) -> Vec<Observation> {
        self.0.lock().expect("a lock").clone()
    }

    fn outcomes(&self) -> Vec<Outcome> {
        self.all().iter().map(Observation::outcome).collect()
    }

    /// Waits until it was told so often.
    async fn times(&self, count: usize) {
        while self.all().len() < count {
            self.1.notified().await;
        }
    }
}

/// Sends these requests one after the other. Each response tells the same as the observer.
async fn outcomes(
    layer: IdempotencyLayer,
    probe: &Probe,
    requests: impl IntoIterator<Item = Request<Body>>,
) -> Vec<Outcome> {
    let told = Told::default();
    let service = layer.with_observer(told.observer()).layer(probe.service());
    let mut outcomes = Vec::new();
    for request in requests {
        let answer = send(&service, request).await;
        let outcome: Outcome = *answer.head.extensions.get().expect("an outcome");
        outcomes.push(outcome);
        if let Outcome::Refused(kind) = outcome {
            assert_eq!(answer.rejection(), Some(kind));
        }
    }
    assert_eq!(told.outcomes(), outcomes);
    outcomes
}

/// Memory that can't be reached for the first such call.
fn missing(call: Call) -> FaultyStore {
    let store = FaultyStore::new(MemoryStore::new());
    store.then(call, UNAVAILABLE);
    store
}

/// Memory that each such call fails on, also when it is repeated.
fn failing(call: Call, kind: StoreErrorKind) -> FaultyStore {
    let store = FaultyStore::new(MemoryStore::new());
    store.always(call, Fault::Fails(kind));
    store
}

fn status(status: StatusCode) -> Probe {
    Probe::answering(move |_| Ok(answer(status, "")))
}

fn bad_gateway() -> Probe {
    status(StatusCode::BAD_GATEWAY)
}

#[expect(clippy::panic, reason = "it is what this handler is for")]
fn panicking() -> Probe {
    Probe::answering(|_| panic!("a handler that panics"))
}

fn verdict(verdict: Verdict) -> Probe {
    Probe::answering(move |run| {
        let mut response = created(run);
        response.extensions_mut().insert(verdict);
        Ok(response)
    })
}

/// A request with a key, and the same once more.
async fn assert_twice(layer: IdempotencyLayer, probe: Probe, first: Outcome, again: Outcome) {
    let requests = [post("k", "{}"), post("k", "{}")];
    assert_eq!(outcomes(layer, &probe, requests).await, [first, again]);
}

fn memory() -> IdempotencyLayer {
    layer(MemoryStore::new())
}

#[tokio::test]
async fn a_handlers_answer_decides_the_outcome() {
    assert_twice(memory(), Probe::new(), Saved, Replayed).await;
    let not_found = || status(StatusCode::NOT_FOUND);
    assert_twice(memory(), not_found(), Released, Released).await;
    assert_twice(memory(), bad_gateway(), Abandoned, Refused(OutcomeUnknown)).await;
    let again = memory().with_takeover(Takeover::RunAgain);
    assert_twice(again, bad_gateway(), Abandoned, Abandoned).await;
    let database = layer(Database::new());
    assert_twice(database, bad_gateway(), Abandoned, Abandoned).await;
    let tombstone = verdict(Verdict::Tombstone);
    assert_twice(memory(), tombstone, NotKept, Refused(ResponseNotKept)).await;
    let (conflict, lost) = (verdict(Verdict::Conflict), Refused(NotCommitted));
    assert_twice(memory(), conflict, lost, lost).await;
    let failed = Refused(HandlerFailed);
    assert_twice(memory(), panicking(), failed, Refused(OutcomeUnknown)).await;
}

#[tokio::test]
async fn a_store_that_fails_decides_the_outcome() {
    let full = layer(failing(Call::Reserve, StoreErrorKind::Full));
    assert_twice(full, Probe::new(), Refused(StoreFull), Refused(StoreFull)).await;
    let missing = layer(missing(Call::Reserve));
    assert_twice(missing, Probe::new(), Refused(StoreUnavailable), Saved).await;
    let owing = layer(failing(Call::Complete, StoreErrorKind::Unavailable));
    assert_twice(owing, Probe::new(), Owed, Refused(InFlight)).await;
    let keeping = layer(failing(Call::Release, StoreErrorKind::Unavailable));
    let not_found = status(StatusCode::NOT_FOUND);
    assert_twice(keeping, not_found, Released, Refused(InFlight)).await;
    let unsure = FaultyStore::of_kind(MemoryStore::new(), StoreKind::Transaction);
    let lost = Fault::Fails(StoreErrorKind::OutcomeUnknown);
    unsure.always(Call::Complete, lost);
    let pending = Refused(OutcomePending);
    assert_twice(layer(unsure), Probe::new(), pending, Refused(InFlight)).await;
}

#[tokio::test]
async fn a_run_without_protection_is_told_apart_whatever_its_handler_answers() {
    let unprotected = || {
        let layer = layer(missing(Call::Reserve));
        layer.with_on_store_failure(OnStoreFailure::RunUnprotected)
    };
    assert_twice(unprotected(), Probe::new(), Unprotected, Replayed).await;
    assert_twice(unprotected(), bad_gateway(), Unprotected, Abandoned).await;
    let failed = Refused(HandlerFailed);
    assert_twice(unprotected(), panicking(), failed, failed).await;
}

#[tokio::test]
async fn a_refusal_says_why() {
    let mut keyless = post("k", "{}");
    keyless.headers_mut().remove("idempotency-key");
    let requests = [post("k", "{}"), post("k", "[]"), post("a b", ""), keyless];
    let refusals = [KeyReused, InvalidKey, MissingKey].map(Refused);
    let outcomes = outcomes(memory().require_key(), &Probe::new(), requests).await;
    assert_eq!((outcomes[0], &outcomes[1..]), (Saved, &refusals[..]));
}

#[tokio::test(start_paused = true)]
async fn an_observer_is_told_key_attempt_and_times() {
    let told = Told::default();
    let store = FaultyStore::new(MemoryStore::new());
    let slow = Fault::IsSlow(Duration::from_millis(200));
    store.then(Call::Reserve, slow).then(Call::Abandon, slow);
    let service = layer(store)
        .with_run_limit(Duration::from_secs(3))
        .with_takeover(Takeover::RunAgain)
        .with_observer(told.observer())
        .layer(Probe::new().shut().service());
    send(&service, post("k", "{}")).await;
    send(&service, post("k", "{}")).await;
    send(&service, post("a b", "{}")).await;

    let [first, second, third] = &told.all()[..] else {
        panic!("three requests")
    };
    let limit = Outcome::Refused(RejectionKind::RunLimit);
    assert_eq!((first.outcome(), second.outcome()), (limit, limit));
    assert_eq!((first.attempt(), second.attempt()), (Some(1), Some(2)));
    assert_eq!(first.store_time(), Duration::from_millis(400));
    assert_eq!(first.handler_time(), Some(Duration::from_secs(3)));
    assert_eq!(second.store_time(), Duration::ZERO);
    assert!(first.record_key().is_some());
    assert_eq!(first.record_key(), second.record_key());
    assert_eq!(
        (third.record_key(), third.attempt(), third.handler_time()),
        (None, None, None)
    );
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_runs_again_is_told_of_once_with_the_time_of_all_runs() {
    let told = Told::default();
    let database = Database::new();
    database.lose(End::Complete, 2);
    let service = layer(database)
        .with_transaction_retries(3)
        .with_observer(told.observer())
        .layer(service_fn(|_: Request<RequestBody<Body>>| async {
            pass(Duration::from_secs(1)).await;
            Ok::<_, &'static str>(created(1))
        }));
    send(&service, post("k", "{}")).await;
    assert_eq!(told.outcomes(), [Outcome::Saved]);
    assert_eq!(told.all()[0].handler_time(), Some(Duration::from_secs(3)));
}

#[tokio::test]
async fn an_error_of_the_wrapped_service_has_no_response_and_is_told() {
    let told = Told::default();
    let service = memory()
        .with_observer(told.observer())
        .layer(Probe::answering(|_| Err("down")).service::<Body>());
    let error = service.oneshot(post("k", "{}")).await.expect_err("its own");
    assert_eq!(error, "down");
    assert_eq!(told.outcomes(), [Outcome::Abandoned]);
}

#[tokio::test]
async fn a_request_without_a_key_tells_nothing() {
    let told = Told::default();
    let plain = memory().with_observer(told.observer());
    let layers = [
        (plain.clone(), false),
        (plain.with_key(KeyBy::body(|_, _| None)), true),
    ];
    for (layer, has_header) in layers {
        let service = layer.layer(Probe::new().service());
        let mut request = post("k", "{}");
        if !has_header {
            request.headers_mut().remove("idempotency-key");
        }
        let answer = send(&service, request).await;
        assert_eq!(answer.text().len(), "run 1".len());
        assert_eq!(answer.head.extensions.get::<Outcome>(), None);
    }
    assert!(told.all().is_empty());
}

#[tokio::test]
async fn a_run_whose_caller_has_gone_is_told_of_when_it_ends() {
    let told = Told::default();
    let probe = Probe::new().shut();
    let service = memory()
        .with_observer(told.observer())
        .layer(probe.service());
    let caller = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    caller.abort();
    assert!(caller.await.expect_err("it was aborted").is_cancelled());
    assert!(told.all().is_empty());
    probe.open();
    told.times(1).await;
    assert_eq!(told.outcomes(), [Outcome::Saved]);
}

#[tokio::test]
async fn an_inline_run_that_is_dropped_is_told_as_abandoned() {
    let told = Told::default();
    let probe = Probe::new().shut();
    let service = memory()
        .with_detached(false)
        .with_observer(told.observer())
        .layer(probe.service());
    let caller = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    caller.abort();
    told.times(1).await;
    assert_eq!(told.outcomes(), [Outcome::Abandoned]);
    assert_eq!(told.all()[0].handler_time(), None);
}

#[tokio::test]
async fn an_inline_run_that_is_dropped_while_it_settles_is_told_as_it_is_settled() {
    let told = Told::default();
    let store = FaultyStore::new(MemoryStore::new());
    store.then(Call::Complete, Fault::Hangs);
    let service = layer(store.clone())
        .with_detached(false)
        .with_observer(told.observer())
        .layer(Probe::new().service());
    let caller = spawn_send(&service, post("k", "{}"));
    store.reached(Call::Complete, 1).await;
    caller.abort();
    told.times(1).await;
    assert_eq!(told.outcomes(), [Saved]);
    store.let_go();
    store.all_calls_ended().await;
}

#[tokio::test]
async fn an_error_of_an_unprotected_run_is_told_as_of_one() {
    let told = Told::default();
    let service = layer(missing(Call::Reserve))
        .with_on_store_failure(OnStoreFailure::RunUnprotected)
        .with_observer(told.observer())
        .layer(Probe::answering(|_| Err("its own")).service::<Body>());
    let error = service.oneshot(post("k", "{}")).await;
    assert_eq!(error.expect_err("its own"), "its own");
    assert_eq!(told.outcomes(), [Unprotected]);
}

#[tokio::test]
async fn a_caller_that_goes_away_before_its_run_is_told_as_cancelled() {
    let told = Told::default();
    let store = FaultyStore::new(MemoryStore::new());
    store.then(Call::Reserve, Fault::Hangs);
    let service = layer(store.clone())
        .with_observer(told.observer())
        .layer(Probe::new().service());
    let caller = spawn_send(&service, post("k", "{}"));
    store.reached(Call::Reserve, 1).await;
    caller.abort();
    told.times(1).await;
    assert_eq!(told.outcomes(), [Outcome::Cancelled]);
    assert_eq!(told.all()[0].attempt(), None);
    store.let_go();
    store.all_calls_ended().await;
}

#[tokio::test]
async fn a_waiter_is_told_of_by_its_own_end() {
    let told = Told::default();
    let store = FaultyStore::new(MemoryStore::new());
    let probe = Probe::new().shut();
    let service = layer(store.clone())
        .with_on_in_flight(OnInFlight::Wait(Duration::from_secs(60)))
        .with_observer(told.observer())
        .layer(probe.service());
    let running = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let gone = spawn_send(&service, post("k", "{}"));
    let patient = spawn_send(&service, post("k", "{}"));
    store.reached(Call::Inspect, 2).await;
    gone.abort();
    told.times(1).await;
    assert_eq!(told.outcomes(), [Outcome::Cancelled]);
    probe.open();
    running.await.expect("an answer");
    patient.await.expect("an answer");
    told.times(3).await;
    assert_eq!(told.outcomes()[1..], [Outcome::Saved, Outcome::Replayed]);
}

#[tokio::test]
async fn an_observer_that_panics_changes_nothing() {
    let panics = |_: &Observation| panic!("an observer that panics");
    let service = memory().with_observer(panics).layer(Probe::new().service());
    assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");
    assert!(send(&service, post("k", "{}")).await.is_replay());
}

/// A panic that is no run's: of a closure that the layer was given. The observer that panics then is a second one on top of it.
#[tokio::test]
async fn a_panic_on_the_way_is_told_once_as_what_the_caller_gets() {
    let fingerprint = |_: &http::request::Parts, _: &[u8]| -> Vec<u8> { panic!("a fingerprint") };
    let layers = [
        memory().with_key(KeyBy::parts(|_| panic!("a key"))),
        memory().with_fingerprint(FingerprintBy::by(fingerprint)),
        memory().with_spawn(|_| panic!("a spawn")),
    ];
    for layer in layers {
        let told = Told::default();
        let tell = told.observer();
        let layer = layer.with_observer(move |observation| {
            tell(observation);
            panic!("an observer that panics");
        });
        let answer = send(&layer.layer(Probe::new().service()), post("k", "{}")).await;
        let failed = Outcome::Refused(RejectionKind::HandlerFailed);
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer.head.extensions.get(), Some(&failed));
        assert_eq!(told.outcomes(), [failed]);
    }
}
