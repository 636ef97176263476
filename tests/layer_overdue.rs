//! A store that hangs: what it is asked and told is bounded, in number and in bytes, and when it answers again all is as before.
#![cfg(feature = "memory")]
mod support;

use std::time::Duration;

use http::StatusCode;
use support::{
    Body,
    faulty::{Call, Fault, FaultyStore, pass},
    post,
    probe::{Probe, answer, spawn_send},
    send,
};
use tower::Layer;
use tower_idempotency::{
    Drain, IdempotencyLayer, MemoryStore, OnStoreFailure, RejectionKind, ScopeBy, StoreErrorKind,
    store::StoreKind,
};

const MINUTE: Duration = Duration::from_secs(60);
const BOUND: usize = 10;

fn store_and_drain() -> (FaultyStore, Drain) {
    (FaultyStore::new(MemoryStore::new()), Drain::new())
}

fn layer(store: &FaultyStore, drain: &Drain) -> IdempotencyLayer {
    IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
        .with_drain(drain.clone())
        .with_late_call_bound(BOUND)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_asked_no_more_than_the_bound_and_is_back_at_once() {
    let (store, drain) = store_and_drain();
    let probe = Probe::new();
    store.always(Call::Reserve, Fault::Hangs);
    let service = layer(&store, &drain).layer(probe.service::<Body>());
    for number in 0..100 {
        let refused = send(&service, post(&format!("k{number}"), "{}")).await;
        assert_eq!(refused.rejection(), Some(RejectionKind::StoreUnavailable));
        assert_eq!(refused.head.headers["retry-after"], "1");
    }
    assert_eq!(
        (store.count(Call::Reserve), drain.running()),
        (BOUND, BOUND)
    );

    store.heal();
    store.let_go();
    assert_eq!(drain.wait(MINUTE).await, 0);
    store.all_calls_ended().await;

    // The claims that came late were given back.
    for number in 0..100 {
        let served = send(&service, post(&format!("k{number}"), "{}")).await;
        assert_eq!(
            (served.status(), served.is_replay()),
            (StatusCode::CREATED, false)
        );
    }
    assert_eq!(probe.runs(), 100);
}

#[tokio::test(start_paused = true)]
async fn requests_that_come_at_once_may_go_over_the_bound_and_later_ones_may_not() {
    let (store, drain) = store_and_drain();
    let probe = Probe::new();
    store.always(Call::Reserve, Fault::Hangs);
    let service = layer(&store, &drain).layer(probe.service::<Body>());
    let at_once: Vec<_> = (0..3 * BOUND)
        .map(|number| spawn_send(&service, post(&format!("k{number}"), "{}")))
        .collect();
    for refused in at_once {
        let refused = refused.await.expect("an answer");
        assert_eq!(refused.rejection(), Some(RejectionKind::StoreUnavailable));
    }
    send(&service, post("later", "{}")).await;
    assert_eq!(store.count(Call::Reserve), 3 * BOUND);
    store.let_go();
    store.all_calls_ended().await;
}

#[tokio::test(start_paused = true)]
async fn callers_that_go_away_count_only_if_the_store_hangs() {
    // In order, though it takes its time; and one that hangs.
    for (fault, asked) in [
        (Fault::IsSlow(Duration::from_secs(1)), 101),
        (Fault::Hangs, 100),
    ] {
        let store = FaultyStore::new(MemoryStore::new());
        let (drain, probe) = (Drain::new(), Probe::new());
        store.always(Call::Reserve, fault);
        let service = layer(&store, &drain)
            .with_on_store_failure(OnStoreFailure::RunUnprotected)
            .layer(probe.service::<Body>());
        let callers: Vec<_> = (0..100)
            .map(|number| spawn_send(&service, post(&format!("k{number}"), "{}")))
            .collect();
        store.reached(Call::Reserve, 100).await;
        callers.iter().for_each(tokio::task::JoinHandle::abort);
        // The limit of a call is 5 s.
        pass(Duration::from_secs(6)).await;
        send(&service, post("later", "{}")).await;
        assert_eq!(store.count(Call::Reserve), asked, "{fault:?}");
        assert_eq!(probe.context(1).is_protected(), asked == 101);
        store.let_go();
        store.all_calls_ended().await;
        assert_eq!(probe.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_bound_of_what_is_owed_known_keys_are_answered_and_new_ones_not_run() {
    let (store, drain) = (FaultyStore::new(MemoryStore::new()), Drain::new());
    let probe = Probe::new();
    let service = layer(&store, &drain)
        .with_settlement_bounds(3, usize::MAX)
        .with_on_store_failure(OnStoreFailure::RunUnprotected)
        .layer(probe.service::<Body>());
    assert_eq!(send(&service, post("paid", "{}")).await.text(), "run 1");
    // It answers whoever asks, and has no room for responses.
    store.always(Call::Complete, Fault::Fails(StoreErrorKind::Full));
    for number in 0..3 {
        send(&service, post(&format!("k{number}"), "{}")).await;
    }
    assert!(send(&service, post("paid", "{}")).await.is_replay());
    let running = send(&service, post("k0", "{}")).await;
    assert_eq!(running.rejection(), Some(RejectionKind::InFlight));
    let refused = send(&service, post("new", "{}")).await;
    assert_eq!(refused.rejection(), Some(RejectionKind::StoreUnavailable));
    // Nothing is claimed, so that nothing is to be given back.
    assert_eq!((probe.runs(), store.count(Call::Reserve)), (4, 4));

    store.heal();
    assert_eq!(drain.wait(MINUTE).await, 0);
    assert_eq!(send(&service, post("new", "{}")).await.text(), "run 5");
}

#[tokio::test(start_paused = true)]
async fn at_the_bound_the_next_request_finds_out_that_the_store_is_back() {
    // It isn't asked, or it is and can't be told.
    for reaction in [OnStoreFailure::Refuse, OnStoreFailure::RunUnprotected] {
        let (store, drain) = (FaultyStore::new(MemoryStore::new()), Drain::new());
        let probe = Probe::new();
        let service = layer(&store, &drain)
            .with_settlement_bounds(3, usize::MAX)
            .with_on_store_failure(reaction)
            .layer(probe.service::<Body>());
        store.always(Call::Complete, Fault::Fails(StoreErrorKind::Unavailable));
        for number in 0..3 {
            send(&service, post(&format!("k{number}"), "{}")).await;
        }
        // By now each of them is told every ten seconds only.
        pass(MINUTE).await;
        store.heal();

        let refused = send(&service, post("new", "{}")).await;
        assert_eq!(refused.rejection(), Some(RejectionKind::StoreUnavailable));
        let all = drain.wait(Duration::from_millis(1)).await;
        assert_eq!(all, 0, "one was told at once, and then the others");
        assert_eq!(send(&service, post("new", "{}")).await.text(), "run 4");
    }
}

#[tokio::test(start_paused = true)]
async fn settlements_that_hang_count_too() {
    // A release and an abandonment: nothing is owed, but the calls go on.
    for (call, status) in [
        (Call::Release, StatusCode::NOT_FOUND),
        (Call::Abandon, StatusCode::BAD_GATEWAY),
    ] {
        let (store, drain) = store_and_drain();
        let probe = Probe::answering(move |_| Ok(answer(status, "no")));
        store.always(call, Fault::Hangs);
        let service = layer(&store, &drain).layer(probe.service::<Body>());
        for number in 0..100 {
            send(&service, post(&format!("k{number}"), "{}")).await;
        }
        assert!(probe.runs() <= BOUND, "{call:?}: {}", probe.runs());
        store.heal();
        store.let_go();
        assert_eq!(drain.wait(MINUTE).await, 0);
        store.all_calls_ended().await;
        let runs = probe.runs();
        send(&service, post("new", "{}")).await;
        assert_eq!(probe.runs(), runs + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_that_hang_are_bounded_too_and_go_on_when_they_are_answered() {
    let (store, drain, probe) = (
        FaultyStore::new(MemoryStore::new()),
        Drain::new(),
        Probe::new().shut(),
    );
    store.always(Call::Renew, Fault::Hangs);
    let service = layer(&store, &drain)
        .with_run_limit(MINUTE * 60)
        .layer(probe.service::<Body>());
    let runs: Vec<_> = (0..5)
        .map(|number| spawn_send(&service, post(&format!("k{number}"), "{}")))
        .collect();
    pass(MINUTE * 30).await;
    // As many as fall into a lease of each.
    assert_eq!(store.count(Call::Renew), 15);

    store.heal();
    store.let_go();
    pass(MINUTE).await;
    assert!(store.count(Call::Renew) >= 15 + 5 * 5);
    probe.open();
    for run in runs {
        assert_eq!(run.await.expect("an answer").status(), StatusCode::CREATED);
    }
    assert_eq!(drain.wait(MINUTE).await, 0);
    store.all_calls_ended().await;
}

#[tokio::test(start_paused = true)]
async fn keys_that_a_store_fails_to_free_are_bounded_too() {
    let (store, drain) = store_and_drain();
    let probe = Probe::answering(|_| Ok(answer(StatusCode::NOT_FOUND, "no")));
    store.always(Call::Release, Fault::Fails(StoreErrorKind::Other));
    let service = layer(&store, &drain)
        .with_settlement_bounds(BOUND, usize::MAX)
        .layer(probe.service::<Body>());
    for number in 0..100 {
        send(&service, post(&format!("k{number}"), "{}")).await;
    }
    assert_eq!((probe.runs(), drain.running()), (BOUND, BOUND));

    store.heal();
    assert_eq!(drain.wait(MINUTE).await, 0);
    send(&service, post("k0", "{}")).await;
    assert_eq!(probe.runs(), BOUND + 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_store_would_answer_again_is_not_asked_again() {
    use StoreErrorKind::{Conflict, LostClaim, Misused, RolledBack};
    for kind in [LostClaim, RolledBack, Conflict, Misused] {
        let store = FaultyStore::of_kind(MemoryStore::new(), StoreKind::Transaction);
        let (drain, probe) = (Drain::new(), Probe::new());
        // A claim whose caller doesn't wait for it any more is released.
        store.then(Call::Reserve, Fault::AnswersLate);
        store.always(Call::Release, Fault::Fails(kind));
        let service = layer(&store, &drain).layer(probe.service::<Body>());
        let refused = send(&service, post("k", "{}")).await;
        assert_eq!(refused.rejection(), Some(RejectionKind::StoreUnavailable));
        store.let_go();
        assert_eq!(drain.wait(MINUTE).await, 0, "{kind:?}");
        assert_eq!((probe.runs(), store.count(Call::Release)), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn unprotected_runs_go_on_at_once_and_keep_no_more_than_the_bounds() {
    // The bound of calls, and that of bytes: each body has 5.
    for (bound, bytes) in [(BOUND, usize::MAX), (usize::MAX, 5 * BOUND)] {
        let (store, drain) = store_and_drain();
        let probe = Probe::answering(|_| Ok(answer(StatusCode::CREATED, "12345")));
        for call in [Call::Reserve, Call::Inspect, Call::Complete] {
            store.always(call, Fault::Hangs);
        }
        let service = layer(&store, &drain)
            .with_late_call_bound(bound)
            .with_settlement_bounds(usize::MAX, bytes)
            .with_on_store_failure(OnStoreFailure::RunUnprotected)
            .layer(probe.service::<Body>());
        for number in 0..100 {
            let served = send(&service, post(&format!("k{number}"), "{}")).await;
            assert_eq!(served.status(), StatusCode::CREATED);
            assert!(!probe.context(number + 1).is_protected());
        }
        let asked = store.count(Call::Reserve);
        assert!(asked <= BOUND + 1 || bound > BOUND, "{asked}");
        let told = store.count(Call::Complete);
        assert!((1..=BOUND).contains(&told), "{told}");

        store.heal();
        store.let_go();
        assert_eq!(drain.wait(MINUTE).await, 0);
        store.all_calls_ended().await;
        send(&service, post("new", "{}")).await;
        assert!(probe.context(101).is_protected());
    }
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_run_that_did_nothing_tells_no_store_that_hangs() {
    let (store, drain) = store_and_drain();
    let probe = Probe::answering(|_| Ok(answer(StatusCode::NOT_FOUND, "")));
    store.always(Call::Reserve, Fault::Hangs);
    store.always(Call::Release, Fault::Hangs);
    let service = layer(&store, &drain)
        .with_on_store_failure(OnStoreFailure::RunUnprotected)
        .layer(probe.service::<Body>());
    for number in 0..100 {
        send(&service, post(&format!("k{number}"), "{}")).await;
    }
    let told = store.count(Call::Release);
    assert!((1..=BOUND).contains(&told), "{told}");
    store.let_go();
    assert_eq!(drain.wait(MINUTE).await, 0);
    store.all_calls_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_ask_a_store_that_hangs_for_longer_than_it_waits() {
    let (store, drain) = store_and_drain();
    let probe = Probe::new().shut();
    let service = layer(&store, &drain)
        .with_on_in_flight(tower_idempotency::OnInFlight::Wait(MINUTE))
        .layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    store.always(Call::Inspect, Fault::Hangs);
    let waiters: Vec<_> = (0..8)
        .map(|_| spawn_send(&service, post("k", "{}")))
        .collect();
    for waiter in waiters {
        let refused = waiter.await.expect("an answer");
        assert_eq!(refused.rejection(), Some(RejectionKind::StoreUnavailable));
    }
    pass(MINUTE).await;
    assert_eq!(store.count(Call::Inspect), 8);
    store.let_go();
    probe.open();
    assert_eq!(first.await.expect("an answer").text(), "run 1");
    store.all_calls_ended().await;
}
