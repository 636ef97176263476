//! Requests with one key at the same time: one runs, the others are refused, whatever the interleaving.
#![cfg(feature = "memory")]
mod support;

use std::{collections::HashMap, sync::Arc, time::Duration};

use http::StatusCode;
use support::{
    Answer, Body,
    faulty::{Call, Fault, FaultyStore},
    post,
    probe::{Probe, answer, spawn_send},
    send,
};
use tokio::{sync::Barrier, task::JoinSet};
use tower::{Layer, limit::ConcurrencyLimitLayer};
use tower_idempotency::{Drain, IdempotencyLayer, MemoryStore, OnInFlight, RejectionKind, ScopeBy};

fn layer(store: &MemoryStore) -> IdempotencyLayer {
    IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
}

fn is_in_flight(answer: &Answer) -> bool {
    answer.rejection() == Some(RejectionKind::InFlight)
        && answer.status() == StatusCode::CONFLICT
        && answer
            .head
            .headers
            .get("retry-after")
            .is_some_and(|after| after == "1")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_fifty_equal_requests_through_two_layers_one_runs_and_the_others_get_409() {
    let store = MemoryStore::new();
    let probe = Probe::new().shut();
    let replicas = [&store, &store].map(|store| layer(store).layer(probe.service::<Body>()));
    let together = Arc::new(Barrier::new(50));
    let mut answers = JoinSet::new();
    for number in 0..50 {
        let (service, together) = (replicas[number % 2].clone(), Arc::clone(&together));
        answers.spawn(async move {
            together.wait().await;
            send(&service, post("k", "{}")).await
        });
    }

    for _ in 0..49 {
        let refused = answers.join_next().await.expect("49 answers").expect("one");
        assert!(is_in_flight(&refused), "{refused:?}");
    }
    probe.open();
    let first = answers.join_next().await.expect("the run").expect("one");

    assert_eq!((first.text(), first.is_replay()), ("run 1", false));
    for service in &replicas {
        assert!(send(service, post("k", "{}")).await.is_replay());
    }
    assert_eq!(probe.runs(), 1);
    assert_eq!(store.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_fifty_equal_requests_that_wait_through_two_layers_one_runs_and_the_others_get_its_answer()
 {
    let store = MemoryStore::new();
    let probe = Probe::new().shut();
    let replicas = [&store, &store].map(|store| {
        let waiting = layer(store).with_on_in_flight(OnInFlight::Wait(Duration::from_secs(20)));
        let waiting = waiting.with_waiter_bounds(50, 50);
        waiting.layer(probe.service::<Body>())
    });
    let answers: Vec<_> = (0..50)
        .map(|number| spawn_send(&replicas[number % 2], post("k", "{}")))
        .collect();
    support::faulty::pass(Duration::from_secs(10)).await;
    assert_eq!(probe.runs(), 1);
    probe.open();

    let mut replays = 0;
    for answer in answers {
        let answer = answer.await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::CREATED);
        assert_eq!(answer.text(), "run 1");
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((probe.runs(), replays), (1, 49));
}

#[tokio::test(start_paused = true)]
async fn reservations_that_interleave_in_any_way_give_one_run_and_one_409() {
    for (first_polls, second_polls) in (0..6).flat_map(|first| (0..6).map(move |s| (first, s))) {
        let store = FaultyStore::new(MemoryStore::new());
        store.then(Call::Reserve, Fault::IsPolled(first_polls));
        store.then(Call::Reserve, Fault::IsPolled(second_polls));
        let probe = Probe::new().shut();
        let service = IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
            .layer(probe.service::<Body>());
        let mut answers = JoinSet::new();
        for _ in 0..2 {
            let service = service.clone();
            answers.spawn(async move { send(&service, post("k", "{}")).await });
        }

        let loser = answers.join_next().await.expect("one").expect("an answer");
        probe.open();
        let winner = answers.join_next().await.expect("two").expect("an answer");

        assert!(is_in_flight(&loser), "{first_polls}, {second_polls}");
        assert_eq!(winner.text(), "run 1");
        assert_eq!(probe.runs(), 1);
        // The loser isn't a store failure: nothing was asked twice.
        assert_eq!(store.count(Call::Reserve), 2);
    }
}

#[tokio::test]
async fn a_duplicate_leaves_the_claim_of_the_first_valid() {
    let store = FaultyStore::new(MemoryStore::new());
    let probe = Probe::new().shut();
    let service = IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
        .layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;

    assert!(is_in_flight(&send(&service, post("k", "{}")).await));
    let other = send(&service, post("k", "{\"other\":1}")).await;
    assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    probe.open();

    assert_eq!(first.await.expect("an answer").text(), "run 1");
    assert!(send(&service, post("k", "{}")).await.is_replay());
    assert_eq!((probe.runs(), store.count(Call::Complete)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_looks_while_the_result_is_on_its_way_never_runs() {
    let slowly = Fault::IsSlow(Duration::from_secs(4));
    for (number, fault) in [slowly, Fault::AnswersLate].into_iter().enumerate() {
        let store = FaultyStore::new(MemoryStore::new());
        store.then(Call::Complete, fault);
        let probe = Probe::new();
        // Two layers, so that the waiter is not woken but has to look.
        let [first, second] = [&store, &store].map(|store| {
            IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
                .with_on_in_flight(OnInFlight::Wait(Duration::from_secs(60)))
                .layer(probe.service::<Body>())
        });
        let running = spawn_send(&first, post("k", "{}"));
        store.reached(Call::Complete, 1).await;

        let waited = send(&second, post("k", "{}")).await;

        assert!(waited.is_replay(), "{number}: {waited:?}");
        store.let_go();
        assert_eq!(running.await.expect("an answer").text(), "run 1");
        assert_eq!(probe.runs(), 1);
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_thousand_duplicates_a_few_wait_and_hold_nothing_and_the_rest_gets_409_at_once() {
    let probe = Probe::new().shut();
    let service = layer(&MemoryStore::new())
        .with_on_in_flight(OnInFlight::Wait(Duration::from_secs(20)))
        .with_waiter_bounds(8, 20)
        .layer(ConcurrencyLimitLayer::new(5).layer(probe.service::<Body>()));
    let mut runs = Vec::new();
    for key in ["a", "b", "c"] {
        runs.push(spawn_send(&service, post(key, "{}")));
    }
    probe.started(3).await;

    let mut duplicates = JoinSet::new();
    // 8 wait for each of two keys, and then only 4 for the third: 20 in total.
    for (key, equal, waiting) in [("a", 400, 8), ("b", 400, 8), ("c", 200, 4)] {
        for _ in 0..equal {
            let service = service.clone();
            duplicates.spawn(async move { (key, send(&service, post(key, "{}")).await) });
        }
        for _ in waiting..equal {
            let refused = duplicates.join_next().await.expect("a refusal");
            assert!(is_in_flight(&refused.expect("an answer").1));
        }
    }
    // The two permits that are left still go to others.
    probe.let_through(4);
    assert_eq!(send(&service, post("d", "{}")).await.text(), "run 4");
    probe.open();

    let mut replays = HashMap::new();
    while let Some(waited) = duplicates.join_next().await {
        let (key, waited) = waited.expect("an answer");
        assert!(waited.is_replay(), "{waited:?}");
        *replays.entry(key).or_insert(0) += 1;
    }
    assert_eq!(replays, HashMap::from([("a", 8), ("b", 8), ("c", 4)]));
    for run in runs {
        assert_eq!(run.await.expect("an answer").status(), StatusCode::CREATED);
    }
    assert_eq!(probe.runs(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_keys_at_once_run_once_each_and_leave_nothing_running() {
    let store = MemoryStore::new();
    let drain = Drain::new();
    let probe = Probe::new();
    let waiting = layer(&store)
        .with_on_in_flight(OnInFlight::Wait(Duration::from_secs(60)))
        .with_drain(drain.clone());
    let service = waiting.layer(probe.service::<Body>());
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        let service = service.clone();
        workers.spawn(async move {
            for number in 0..2_500 {
                // Each key comes from two workers, in about the same moment.
                let key = format!("{}-{number}", worker / 2);
                let answer = send(&service, post(&key, "{}")).await;
                assert_eq!(answer.status(), StatusCode::CREATED, "{answer:?}");
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.expect("no deadlock and no other answer");
    }

    assert_eq!(probe.runs(), 10_000);
    assert_eq!(drain.wait(Duration::from_secs(60)).await, 0);
    assert_eq!((drain.running(), store.len()), (0, 10_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keys_whose_runs_did_nothing_leave_no_record() {
    let store = MemoryStore::new();
    let probe = Probe::answering(|_| Ok(answer(StatusCode::NOT_FOUND, "no such account")));
    let service = layer(&store).layer(probe.service::<Body>());
    let mut workers = JoinSet::new();
    for worker in 0..4 {
        let service = service.clone();
        workers.spawn(async move {
            for number in 0..500 {
                let key = format!("{}-{number}", worker / 2);
                let answer = send(&service, post(&key, "{}")).await;
                assert!(answer.status() == StatusCode::NOT_FOUND || is_in_flight(&answer));
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.expect("no other answer");
    }

    assert!(probe.runs() >= 1_000);
    assert!(store.is_empty());
}

#[tokio::test]
async fn two_services_of_one_layer_are_one_and_two_layers_without_a_common_store_are_not() {
    let probe = Probe::new();
    let one = layer(&MemoryStore::new());
    let mounted = [
        one.layer(probe.service::<Body>()),
        one.clone().layer(probe.service()),
    ];
    assert!(!send(&mounted[0], post("k", "{}")).await.is_replay());
    assert!(send(&mounted[1], post("k", "{}")).await.is_replay());

    let apart = layer(&MemoryStore::new()).layer(probe.service::<Body>());
    assert_eq!(send(&apart, post("k", "{}")).await.text(), "run 2");
}
