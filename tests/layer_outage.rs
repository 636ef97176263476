//! A lease store that fails, hangs or panics, call by call: what the client gets, how often the handler runs, what is recorded.
#![cfg(feature = "memory")]
mod support;

use std::time::Duration;

use http::StatusCode;
use support::{
    Answer, Body,
    faulty::{Call, Fault, FaultyStore, pass},
    post,
    probe::{Probe, answer, created, spawn_send},
    send,
};
use tower::Layer;
use tower_idempotency::{
    Drain, IdempotencyLayer, MemoryStore, OnStoreFailure, RejectionKind, ScopeBy, StoreErrorKind,
    store::{Store, StoreKind, Takeover},
};

const MINUTE: Duration = Duration::from_secs(60);
const UNAVAILABLE: Fault = Fault::Fails(StoreErrorKind::Unavailable);

const KINDS: [StoreErrorKind; 6] = [
    StoreErrorKind::Unavailable,
    StoreErrorKind::Other,
    StoreErrorKind::OutcomeUnknown,
    StoreErrorKind::RolledBack,
    StoreErrorKind::Misused,
    StoreErrorKind::Full,
];

/// All that can go wrong with a call, but for a lost claim.
fn faults() -> Vec<Fault> {
    let mut faults = vec![
        Fault::Hangs,
        Fault::AnswersLate,
        Fault::Panics,
        Fault::PanicsAfter,
        Fault::LosesAnswer(StoreErrorKind::Unavailable),
        Fault::LosesAnswer(StoreErrorKind::Other),
    ];
    faults.extend(KINDS.map(Fault::Fails));
    faults
}

fn memory() -> FaultyStore {
    FaultyStore::new(MemoryStore::new())
}

fn layer(store: &FaultyStore, drain: &Drain) -> IdempotencyLayer {
    IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant()).with_drain(drain.clone())
}

fn assert_refused(answer: &Answer, kind: RejectionKind) {
    assert_eq!(answer.rejection(), Some(kind), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_reservation_nothing_runs_and_the_key_stays_free() {
    for fault in faults() {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        store.then(Call::Reserve, fault);
        let service = layer(&store, &drain).layer(probe.service::<Body>());

        let refused = send(&service, post("k", "{}")).await;

        assert_refused(
            &refused,
            if matches!(fault, Fault::Fails(StoreErrorKind::Full)) {
                RejectionKind::StoreFull
            } else {
                RejectionKind::StoreUnavailable
            },
        );
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.head.headers["retry-after"], "1");
        store.let_go();
        assert_eq!(drain.wait(MINUTE).await, 0);
        assert_eq!(probe.runs(), 0);
        if matches!(fault, Fault::Fails(StoreErrorKind::Full)) {
            assert_eq!(
                store.count(Call::Release),
                0,
                "it said that it took nothing"
            );
        }
        let retried = send(&service, post("k", "{}")).await;
        assert_eq!(retried.text(), "run 1", "{fault:?}");
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_run_reaches_its_caller_and_is_recorded_when_the_store_is_back() {
    for fault in faults() {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        store.always(Call::Complete, fault);
        let service = layer(&store, &drain)
            .with_takeover(Takeover::RunAgain)
            .layer(probe.service::<Body>());

        let first = send(&service, post("k", "{}")).await;

        assert_eq!((first.text(), first.is_replay()), ("run 1", false));
        // The outage lasts far longer than the lease.
        pass(MINUTE * 5).await;
        let meanwhile = send(&service, post("k", "{}")).await;
        assert!(meanwhile.is_replay() || meanwhile.rejection() == Some(RejectionKind::InFlight));
        // Some at first, and then about every third of the lease.
        let told = store.count(Call::Complete);
        assert!(told < 50, "{told}");
        store.heal();
        store.let_go();
        assert_eq!(drain.wait(MINUTE).await, 0, "{fault:?}");
        let retried = send(&service, post("k", "{}")).await;
        assert_eq!((retried.text(), retried.is_replay()), ("run 1", true));
        assert_eq!((probe.runs(), store.count(Call::Abandon)), (1, 0));
        assert_eq!(store.count(Call::Release), 0);
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_did_nothing_is_released_when_the_store_is_back() {
    for fault in faults() {
        let (store, drain) = (memory(), Drain::new());
        let probe = Probe::answering(|run| match run {
            1 => Ok(answer(StatusCode::NOT_FOUND, "not yet")),
            run => Ok(created(run)),
        });
        store.always(Call::Release, fault);
        let service = layer(&store, &drain).layer(probe.service::<Body>());

        assert_eq!(send(&service, post("k", "{}")).await.text(), "not yet");
        pass(Duration::from_secs(10)).await;
        store.heal();
        store.let_go();
        assert_eq!(drain.wait(MINUTE).await, 0, "{fault:?}");

        assert_eq!(send(&service, post("k", "{}")).await.text(), "run 2");
        assert_eq!((probe.runs(), probe.context(2).attempt()), (2, 1));
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_abandoning_fails_reads_as_unknown_when_its_lease_ends() {
    for fault in faults() {
        let (store, drain) = (memory(), Drain::new());
        let probe = Probe::answering(|_| Ok(answer(StatusCode::BAD_GATEWAY, "no answer")));
        store.always(Call::Abandon, fault);
        let service = layer(&store, &drain).layer(probe.service::<Body>());

        assert_eq!(send(&service, post("k", "{}")).await.text(), "no answer");
        pass(Duration::from_secs(30)).await;

        let retried = send(&service, post("k", "{}")).await;
        assert_refused(&retried, RejectionKind::OutcomeUnknown);
        assert_eq!((probe.runs(), drain.running()), (1, 0), "{fault:?}");
        store.let_go();
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn whether_a_run_took_effect_is_pending_if_its_claim_was_lost_and_its_record_can_not_be_read()
{
    for fault in faults() {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        store.always(Call::Complete, Fault::Fails(StoreErrorKind::LostClaim));
        store.always(Call::Inspect, fault);
        let service = layer(&store, &drain).layer(probe.service::<Body>());

        let refused = send(&service, post("k", "{}")).await;

        assert_refused(&refused, RejectionKind::OutcomePending);
        assert_eq!((probe.runs(), store.count(Call::Complete)), (1, 1));
        store.let_go();
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_is_never_answered_by_the_record_of_another_request() {
    let later_requests = [
        (None, RejectionKind::OutcomeUnknown),
        // The other request's answer is not for this one, and neither is a refusal: its run was made.
        (Some("{\"other\":1}"), RejectionKind::OutcomeUnknown),
    ];
    for (later, expected) in later_requests {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new().shut());
        store.then(Call::Complete, Fault::Fails(StoreErrorKind::LostClaim));
        let service = layer(&store, &drain).layer(probe.service::<Body>());
        let first = spawn_send(&service, post("k", "{}"));
        probe.started(1).await;
        // An operator freed the key too early.
        let forgotten = store.forget(probe.context(1).record_key()).await;
        assert!(forgotten.expect("the store answers"));
        let later = later.map(|body| spawn_send(&service, post("k", body)));
        if later.is_some() {
            probe.started(2).await;
        }

        probe.let_through(1);
        assert_refused(&first.await.expect("an answer"), expected);
        probe.open();
        if let Some(later) = later {
            assert_eq!(later.await.expect("an answer").text(), "run 2");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn responses_that_are_owed_are_bounded_by_count_and_bytes_and_then_new_keys_get_503() {
    // A body of 5 bytes and no headers: 15 bytes are reached by the third.
    for (count, bytes) in [(3, usize::MAX), (usize::MAX, 15)] {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        store.always(Call::Complete, UNAVAILABLE);
        let service = layer(&store, &drain)
            .with_settlement_bounds(count, bytes)
            .layer(probe.service::<Body>());
        for key in ["a", "b", "c"] {
            assert_eq!(send(&service, post(key, "{}")).await.status(), 201);
        }
        let refused = send(&service, post("d", "{}")).await;
        assert_refused(&refused, RejectionKind::StoreUnavailable);
        assert_eq!((probe.runs(), drain.running()), (3, 3));
        assert_eq!(drain.wait(MINUTE).await, 3);

        store.heal();
        assert_eq!(drain.wait(MINUTE).await, 0);

        for key in ["a", "b", "c"] {
            assert!(send(&service, post(key, "{}")).await.is_replay());
        }
        assert_eq!(send(&service, post("d", "{}")).await.text(), "run 4");
    }
}

#[test]
fn responses_that_a_runtime_owed_when_it_ended_do_not_count_for_the_next() {
    let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
    store.always(Call::Complete, UNAVAILABLE);
    let service = layer(&store, &drain)
        .with_settlement_bounds(1, 5)
        .layer(probe.service::<Body>());
    for (key, status) in [("a", 201), ("b", 201)] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let answers = runtime.block_on(async {
            let served = send(&service, post(key, "{}")).await;
            (served, send(&service, post("refused", "{}")).await)
        });
        assert_eq!(answers.0.status(), status, "{:?}", answers.0);
        assert_refused(&answers.1, RejectionKind::StoreUnavailable);
        drop(runtime);
        assert_eq!(drain.running(), 0);
    }
    assert_eq!(probe.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_the_retention_a_response_that_is_owed_is_given_up() {
    for fault in [UNAVAILABLE, Fault::Hangs] {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        store.always(Call::Complete, fault);
        let service = layer(&store, &drain)
            .with_retention(MINUTE)
            .layer(probe.service::<Body>());
        assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");

        assert_eq!(drain.wait(MINUTE / 2).await, 1, "{fault:?}");
        assert_eq!(drain.wait(MINUTE).await, 0, "{fault:?}");
        store.let_go();
        store.all_calls_ended().await;
    }
}

fn unprotected(store: &FaultyStore, drain: &Drain) -> IdempotencyLayer {
    layer(store, drain).with_on_store_failure(OnStoreFailure::RunUnprotected)
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_store_lets_the_handler_run_unprotected_where_that_was_chosen() {
    for fault in [
        UNAVAILABLE,
        Fault::Hangs,
        Fault::LosesAnswer(StoreErrorKind::Unavailable),
    ] {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        store.then(Call::Reserve, fault);
        let service = unprotected(&store, &drain).layer(probe.service::<Body>());

        assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");

        assert!(!probe.context(1).is_protected());
        store.let_go();
        assert_eq!(drain.wait(MINUTE).await, 0);
        // The store could be told afterwards, so a retry is answered from the record.
        assert!(
            send(&service, post("k", "{}")).await.is_replay(),
            "{fault:?}"
        );
        send(&service, post("other", "{}")).await;
        assert!(probe.context(2).is_protected());
    }
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_run_that_did_nothing_leaves_its_key_free() {
    let (store, drain) = (memory(), Drain::new());
    let probe = Probe::answering(|run| match run {
        1 => Ok(answer(StatusCode::NOT_FOUND, "not yet")),
        run => Ok(created(run)),
    });
    // The key is claimed, and nobody hears of it.
    store.then(
        Call::Reserve,
        Fault::LosesAnswer(StoreErrorKind::Unavailable),
    );
    let service = unprotected(&store, &drain).layer(probe.service::<Body>());
    assert_eq!(send(&service, post("k", "{}")).await.text(), "not yet");
    assert_eq!(drain.wait(MINUTE).await, 0);
    assert_eq!(send(&service, post("k", "{}")).await.text(), "run 2");
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_run_that_is_dropped_has_nothing_to_tell() {
    let (store, drain, probe) = (memory(), Drain::new(), Probe::new().shut());
    store.always(Call::Reserve, UNAVAILABLE);
    let inline = unprotected(&store, &drain).with_detached(false);
    let caller = spawn_send(&inline.layer(probe.service::<Body>()), post("k", "{}"));
    probe.started(1).await;
    caller.abort();
    assert!(caller.await.is_err());

    assert_eq!(drain.wait(MINUTE).await, 0);
    let counts = [Call::Abandon, Call::Release].map(|call| store.count(call));
    assert_eq!(counts, [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_run_that_can_not_be_recorded_still_answers() {
    let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
    store.always(Call::Reserve, UNAVAILABLE);
    store.always(Call::Complete, UNAVAILABLE);
    let service = unprotected(&store, &drain).layer(probe.service::<Body>());

    assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");
    assert_eq!(send(&service, post("k", "{}")).await.text(), "run 2");
    assert_eq!((store.count(Call::Complete), drain.running()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_is_no_reason_to_run_unprotected() {
    let mut faults = vec![Fault::Panics, Fault::PanicsAfter];
    let kinds = KINDS.into_iter().chain([StoreErrorKind::LostClaim]);
    faults.extend(
        kinds
            .filter(|kind| *kind != StoreErrorKind::Unavailable)
            .map(Fault::Fails),
    );
    for fault in faults {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        store.then(Call::Reserve, fault);
        let service = unprotected(&store, &drain).layer(probe.service::<Body>());
        let refused = send(&service, post("k", "{}")).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(probe.runs(), 0, "{fault:?}");
    }
}

#[test]
#[should_panic(expected = "with_on_store_failure(RunUnprotected) needs a lease store")]
fn a_transaction_store_can_not_run_unprotected() {
    let store = FaultyStore::of_kind(MemoryStore::new(), StoreKind::Transaction);
    drop(unprotected(&store, &Drain::new()).layer(Probe::new().service::<Body>()));
}
