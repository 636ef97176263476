//! A transaction store that fails at the end of a run: what was rolled back is never reported as done, nor the other way round.
#![cfg(feature = "memory")]
mod support;

use std::time::Duration;

use support::{
    Body,
    faulty::{Call, Fault, FaultyStore, pass},
    post,
    probe::{Probe, answer, created, spawn_send},
    send,
};
use tower::{Layer, ServiceExt};
use tower_idempotency::{
    Drain, FingerprintBy, IdempotencyLayer, MemoryStore, RejectionKind, ScopeBy, StoreErrorKind,
    store::{Store, StoreKind},
};

/// Memory in the place of a database; what that would roll back, the tests forget.
fn transactions() -> FaultyStore {
    FaultyStore::of_kind(MemoryStore::new(), StoreKind::Transaction)
}

fn layer(store: &FaultyStore) -> IdempotencyLayer {
    IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
}

const RUN_1: Option<RejectionKind> = None;

#[tokio::test(start_paused = true)]
async fn how_a_completion_failed_decides_what_its_caller_gets() {
    use Fault::{AnswersLate, Fails, Hangs, LosesAnswer, Panics, PanicsAfter};
    use StoreErrorKind::{Full, Misused, Other, OutcomeUnknown, RolledBack, Unavailable};
    let not_committed = Some(RejectionKind::NotCommitted);
    let pending = Some(RejectionKind::OutcomePending);
    let failed = Some(RejectionKind::HandlerFailed);
    let cases: &[(&[Fault], _)] = &[
        // It is known that nothing happened.
        (&[Fails(RolledBack)], not_committed),
        (&[Fails(Unavailable)], not_committed),
        (&[Fails(Other)], not_committed),
        (&[Fails(Full)], not_committed),
        (&[Fails(Misused)], failed),
        // It is not known, and asked again.
        (&[Fails(OutcomeUnknown), Fails(RolledBack)], not_committed),
        (&[Fails(OutcomeUnknown), Fails(Misused)], failed),
        (&[Fails(OutcomeUnknown), Fails(OutcomeUnknown)], pending),
        (&[Fails(OutcomeUnknown), Fails(Unavailable)], pending),
        (&[Fails(OutcomeUnknown), Hangs], pending),
        (&[Fails(OutcomeUnknown), Panics], pending),
        (&[Hangs, Hangs], pending),
        (&[Hangs, Fails(RolledBack)], not_committed),
        (&[Panics, Fails(RolledBack)], not_committed),
    ];
    for (faults, expected) in cases {
        let (store, probe, drain) = (transactions(), Probe::new(), Drain::new());
        for fault in *faults {
            store.then(Call::Complete, *fault);
        }
        let drained = layer(&store).with_drain(drain.clone());
        let service = drained.layer(probe.service::<Body>());
        let refused = send(&service, post("k", "{}")).await;

        assert_eq!(refused.rejection(), *expected, "{faults:?}");
        assert_eq!(store.count(Call::Complete), faults.len());
        assert_eq!((probe.runs(), drain.running()), (1, 0));
        if *expected == not_committed {
            assert_eq!(refused.head.headers["retry-after"], "1");
            let key = *probe.context(1).record_key();
            assert!(store.forget(&key).await.expect("the store answers"));
            assert_eq!(send(&service, post("k", "{}")).await.text(), "run 2");
        }
        store.let_go();
        store.all_calls_ended().await;
    }

    // It is not known, and the second answer is that it was committed.
    let committed: [Fault; 5] = [
        LosesAnswer(OutcomeUnknown),
        AnswersLate,
        Hangs,
        PanicsAfter,
        Fails(OutcomeUnknown),
    ];
    for fault in committed {
        let (store, probe) = (transactions(), Probe::new());
        store.then(Call::Complete, fault);
        let service = layer(&store).layer(probe.service::<Body>());
        let first = send(&service, post("k", "{}")).await;
        assert_eq!((first.rejection(), first.text()), (RUN_1, "run 1"));
        assert_eq!(store.count(Call::Complete), 2, "{fault:?}");
        assert!(send(&service, post("k", "{}")).await.is_replay());
        store.let_go();
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_lost_at_the_end_is_answered_by_the_record() {
    let lost = Fault::Fails(StoreErrorKind::LostClaim);
    let unknown = Fault::Fails(StoreErrorKind::OutcomeUnknown);
    for faults in [&[lost][..], &[unknown, lost]] {
        let (store, probe) = (transactions(), Probe::new().shut());
        let service = layer(&store).layer(probe.service::<Body>());
        let first = spawn_send(&service, post("k", "{}"));
        probe.started(1).await;
        // The database rolled it back, and another process did the same meanwhile.
        let key = *probe.context(1).record_key();
        assert!(store.forget(&key).await.expect("the store answers"));
        let second = spawn_send(&service, post("k", "{}"));
        probe.started(2).await;
        probe.let_through(2);
        assert_eq!(second.await.expect("an answer").text(), "run 2");
        for fault in faults {
            store.then(Call::Complete, *fault);
        }
        probe.open();

        let first = first.await.expect("an answer");
        assert_eq!((first.text(), first.is_replay()), ("run 2", true));
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_lost_to_a_record_in_another_form_leaves_the_outcome_pending() {
    let (store, probe) = (transactions(), Probe::new().shut());
    let service = layer(&store).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let key = *probe.context(1).record_key();
    assert!(store.forget(&key).await.expect("the store answers"));
    // Another release, or one that is set up otherwise, did the same meanwhile.
    let other = layer(&store).with_fingerprint(FingerprintBy::json());
    let second = spawn_send(&other.layer(probe.service::<Body>()), post("k", "{}"));
    probe.started(2).await;
    probe.let_through(2);
    assert_eq!(second.await.expect("an answer").text(), "run 2");
    store.then(Call::Complete, Fault::Fails(StoreErrorKind::LostClaim));
    probe.open();

    // It can't be told here that it is the same request. A retry can.
    let first = first.await.expect("an answer");
    assert_eq!(first.rejection(), Some(RejectionKind::OutcomePending));
    assert_eq!(send(&service, post("k", "{}")).await.text(), "run 2");
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_fails_changes_no_answer_but_misuse_does() {
    for (kind, misused) in [
        (StoreErrorKind::Unavailable, false),
        (StoreErrorKind::OutcomeUnknown, false),
        (StoreErrorKind::Misused, true),
    ] {
        for (call, status) in [(Call::Release, 404), (Call::Abandon, 502)] {
            let (store, drain) = (transactions(), Drain::new());
            let probe = Probe::answering(move |_| {
                let status = http::StatusCode::from_u16(status).expect("a status");
                Ok(answer(status, "the handler's"))
            });
            store.then(call, Fault::Fails(kind));
            let service = layer(&store)
                .with_drain(drain.clone())
                .layer(probe.service::<Body>());
            let first = send(&service, post("k", "{}")).await;
            if misused && call == Call::Release {
                assert_eq!(first.rejection(), Some(RejectionKind::HandlerFailed));
            } else {
                assert_eq!(first.text(), "the handler's", "{call:?} {kind:?}");
            }
            assert_eq!((store.count(call), drain.running()), (1, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_is_not_renewed_and_a_failed_reservation_not_given_back() {
    let (store, probe) = (transactions(), Probe::new().shut());
    let service = layer(&store).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    pass(Duration::from_secs(120)).await;
    probe.open();
    assert_eq!(first.await.expect("an answer").text(), "run 1");

    store.then(Call::Reserve, Fault::Fails(StoreErrorKind::Unavailable));
    let refused = send(&service, post("other", "{}")).await;
    assert_eq!(refused.rejection(), Some(RejectionKind::StoreUnavailable));
    pass(Duration::from_secs(120)).await;
    let counts = [Call::Renew, Call::Release].map(|call| store.count(call));
    assert_eq!(counts, [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_cut_off_closes_its_connection_and_one_that_answered_does_not() {
    let (store, probe) = (
        transactions(),
        Probe::answering(|run| match run {
            1 => panic!("the handler panics"),
            2 => Err("the service's own error"),
            run => Ok(created(run)),
        }),
    );
    let service = layer(&store)
        .with_run_limit(Duration::from_secs(1))
        .layer(probe.service::<Body>());
    let panicked = send(&service, post("panics", "{}")).await;
    assert_eq!(panicked.rejection(), Some(RejectionKind::HandlerFailed));
    let error = service.clone().oneshot(post("fails", "{}")).await;
    assert_eq!(error.expect_err("its own"), "the service's own error");
    let probe = probe.shut();
    let limited = send(&service, post("hangs", "{}")).await;
    assert_eq!(limited.rejection(), Some(RejectionKind::RunLimit));
    let inline = layer(&store).with_detached(false);
    let dropped = spawn_send(&inline.layer(probe.service::<Body>()), post("drops", "{}"));
    probe.started(4).await;
    dropped.abort();
    store.reached(Call::Abandon, 4).await;
    probe.open();

    assert_eq!(store.interrupted(), [true, false, true, true]);
}
