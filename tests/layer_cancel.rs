//! A caller that goes away, at any moment: the run goes on or never starts, and a retry ends in one effect.
#![cfg(feature = "memory")]
mod support;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use http::{Request, StatusCode};
use support::{
    Answer, Body,
    faulty::{Call, Fault, FaultyStore, pass, yield_times},
    post,
    probe::{Probe, answer, spawn_send},
    send,
};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{
    Drain, IdempotencyLayer, MemoryStore, OnInFlight, RejectionKind, RequestBody, ScopeBy,
    store::Takeover,
};

const MINUTE: Duration = Duration::from_secs(60);

fn memory() -> FaultyStore {
    FaultyStore::new(MemoryStore::new())
}

fn layer(store: &FaultyStore, drain: &Drain) -> IdempotencyLayer {
    IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant()).with_drain(drain.clone())
}

fn every_call_takes_polls(store: &FaultyStore, polls: usize) {
    let calls = [Call::Reserve, Call::Complete, Call::Release, Call::Abandon];
    for call in calls {
        store.always(call, Fault::IsPolled(polls));
    }
}

/// Polls a future so often, and then drops it.
async fn drop_after<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

/// The retry of a client that asks again while its key is in flight.
async fn retry<S>(service: &S) -> Answer
where
    S: tower::Service<Request<Body>, Error = &'static str> + Clone,
    S: tower::Service<
            Request<Body>,
            Response = http::Response<tower_idempotency::ResponseBody<Body>>,
        >,
{
    loop {
        let answer = send(service, post("k", "{}")).await;
        if answer.rejection() != Some(RejectionKind::InFlight) {
            return answer;
        }
        pass(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_dropped_after_any_number_of_polls_leaves_one_effect_and_a_replay() {
    let mut answered = 0;
    for polls in 0..60 {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        every_call_takes_polls(&store, 4);
        let handler = probe.clone();
        let slow = service_fn(move |_: Request<RequestBody<Body>>| {
            let handler = handler.clone();
            async move {
                yield_times(4).await;
                let answer = handler.run(None).await;
                yield_times(4).await;
                answer
            }
        });
        let service = layer(&store, &drain).layer(slow);
        let first = drop_after(service.clone().oneshot(post("k", "{}")), polls).await;
        answered += usize::from(first.is_some());

        let retried = retry(&service).await;

        assert_eq!(retried.status(), StatusCode::CREATED, "{polls} polls");
        assert_eq!(retried.text(), "run 1", "{polls} polls");
        assert_eq!(probe.effects(), 1, "{polls} polls");
        assert_eq!(drain.wait(MINUTE).await, 0);
        store.all_calls_ended().await;
    }
    assert!((1..60).contains(&answered), "{answered} calls answered");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_dropped_after_any_number_of_polls_leaves_its_place_and_one_effect() {
    let (mut waited, mut answered) = (0, 0);
    for polls in 0..60 {
        let (store, drain) = (memory(), Drain::new());
        every_call_takes_polls(&store, 4);
        store.always(Call::Inspect, Fault::IsPolled(4));
        // The first run does nothing, so that a waiter may run.
        let probe = Probe::answering(|run| match run {
            1 => Ok(answer(StatusCode::NOT_FOUND, "")),
            _ => Ok(answer(StatusCode::CREATED, &format!("run {run}"))),
        });
        let probe = probe.shut();
        let service = layer(&store, &drain)
            .with_on_in_flight(OnInFlight::Wait(MINUTE))
            .with_waiter_bounds(1, 1)
            .layer(probe.service::<Body>());
        let first = spawn_send(&service, post("k", "{}"));
        probe.started(1).await;
        let opening = async {
            yield_times(12).await;
            probe.open();
        };
        let waiter = drop_after(service.clone().oneshot(post("k", "{}")), polls);
        let (waiter, ()) = tokio::join!(waiter, opening);
        waited += usize::from(store.count(Call::Inspect) > 0);
        answered += usize::from(waiter.is_some());
        assert_eq!(first.await.expect("an answer").status(), 404);

        let retried = retry(&service).await;
        assert_eq!(retried.text(), "run 2", "{polls} polls");
        assert_eq!(drain.wait(MINUTE).await, 0);
        assert_eq!(probe.runs(), 2, "{polls} polls");

        drop(probe.clone().shut());
        let other = spawn_send(&service, post("other", "{}"));
        probe.started(3).await;
        let looks = store.count(Call::Inspect);
        let waiter = spawn_send(&service, post("other", "{}"));
        store.reached(Call::Inspect, looks + 1).await;
        probe.open();
        assert_eq!(other.await.expect("an answer").text(), "run 3");
        assert!(
            waiter.await.expect("an answer").is_replay(),
            "{polls} polls"
        );
        store.all_calls_ended().await;
    }
    assert!(waited > 20 && answered > 5, "{waited}, {answered}");
}

#[tokio::test(start_paused = true)]
async fn an_inline_run_dropped_after_any_number_of_polls_never_frees_a_finished_effect() {
    let mut retries = std::collections::BTreeMap::new();
    for polls in 0..80 {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        every_call_takes_polls(&store, 4);
        let handler = probe.clone();
        let slow = service_fn(move |_: Request<RequestBody<Body>>| {
            let handler = handler.clone();
            async move {
                yield_times(4).await;
                handler.run(None).await
            }
        });
        let service = layer(&store, &drain).with_detached(false).layer(slow);
        let first = drop_after(service.clone().oneshot(post("k", "{}")), polls).await;
        assert_eq!(drain.wait(MINUTE).await, 0);
        store.all_calls_ended().await;
        let effects = probe.effects();

        let retried = send(&service, post("k", "{}")).await;

        // Either it did nothing and the retry runs; or it was dropped in mid-run, and that is said;
        // or it has answered, and the answer is replayed.
        let outcome = match (effects, retried.rejection()) {
            (0, None) => "ran",
            (0, Some(RejectionKind::OutcomeUnknown)) => "unknown",
            (1, None) if retried.is_replay() => "replayed",
            other => panic!("{polls} polls: {other:?}"),
        };
        assert!(first.is_none() || outcome == "replayed");
        *retries.entry(outcome).or_insert(0) += 1;
        assert!(probe.effects() <= 1);
    }
    assert_eq!(retries.len(), 3, "{retries:?}");
}

#[tokio::test(start_paused = true)]
async fn an_inline_run_dropped_while_it_settles_is_settled_as_decided() {
    let faults = [Fault::Hangs, Fault::AnswersLate];
    for (fault, takeover) in faults
        .into_iter()
        .flat_map(|fault| [Takeover::Refuse, Takeover::RunAgain].map(|takeover| (fault, takeover)))
    {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        store.then(Call::Complete, fault);
        let inline = layer(&store, &drain).with_detached(false);
        let service = inline
            .with_takeover(takeover)
            .layer(probe.service::<Body>());
        let caller = spawn_send(&service, post("k", "{}"));
        store.reached(Call::Complete, 1).await;
        caller.abort();
        assert_eq!(drain.wait(MINUTE).await, 0);

        let retried = send(&service, post("k", "{}")).await;

        assert!(retried.is_replay(), "{fault:?}: {retried:?}");
        assert_eq!((probe.runs(), store.count(Call::Abandon)), (1, 0));
        store.let_go();
        store.all_calls_ended().await;
        assert!(send(&service, post("k", "{}")).await.is_replay());
    }
}

#[tokio::test(start_paused = true)]
async fn an_inline_run_dropped_before_its_handler_started_is_released_and_in_mid_run_abandoned() {
    let (store, drain, probe) = (memory(), Drain::new(), Probe::new().shut());
    let inline = layer(&store, &drain).with_detached(false);
    let service = inline.layer(probe.service::<Body>());
    store.then(Call::Reserve, Fault::AnswersLate);
    let early = spawn_send(&service, post("early", "{}"));
    store.reached(Call::Reserve, 1).await;
    early.abort();
    let late = spawn_send(&service, post("late", "{}"));
    probe.started(1).await;
    late.abort();
    store.let_go();
    assert_eq!(drain.wait(MINUTE).await, 0);
    probe.open();

    let counts = [Call::Release, Call::Abandon].map(|call| store.count(call));
    assert_eq!(counts, [1, 1]);
    let unknown = send(&service, post("late", "{}")).await;
    assert_eq!(unknown.rejection(), Some(RejectionKind::OutcomeUnknown));
    assert_eq!(send(&service, post("early", "{}")).await.text(), "run 2");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_comes_after_the_store_call_limit_is_released_and_not_run() {
    for fault in [Fault::Hangs, Fault::AnswersLate] {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        store.then(Call::Reserve, fault);
        let service = layer(&store, &drain).layer(probe.service::<Body>());
        let refused = send(&service, post("k", "{}")).await;
        assert_eq!(refused.rejection(), Some(RejectionKind::StoreUnavailable));
        // At a shutdown, the claim that may still come is waited for.
        assert_eq!(drain.wait(MINUTE).await, 1);
        store.let_go();
        assert_eq!(drain.wait(MINUTE).await, 0);

        assert_eq!((probe.runs(), store.count(Call::Release)), (0, 1));
        assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_outer_timeout_cuts_the_caller_off_but_not_the_run() {
    let (store, drain, probe) = (memory(), Drain::new(), Probe::new().shut());
    let timeout = ServiceBuilder::new().timeout(Duration::from_secs(1));
    let guarded = layer(&store, &drain).layer(probe.service::<Body>());
    let service = timeout.service(guarded);

    let cut_off = service.clone().oneshot(post("k", "{}")).await;
    assert!(cut_off.is_err());
    assert_eq!(drain.running(), 1);
    probe.open();
    assert_eq!(drain.wait(MINUTE).await, 0);

    let retried = send(&service, post("k", "{}")).await;
    assert_eq!((retried.text(), retried.is_replay()), ("run 1", true));
    assert_eq!(probe.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_runs_without_a_caller_and_tells_how_many_it_left() {
    let (store, drain, probe) = (memory(), Drain::new(), Probe::new().shut());
    let layers = [&store, &memory()].map(|store| layer(store, &drain).layer(probe.service()));
    let callers = layers.map(|service| spawn_send(&service, post("k", "{}")));
    probe.started(2).await;
    callers.iter().for_each(tokio::task::JoinHandle::abort);

    assert_eq!(drain.wait(MINUTE).await, 2);
    probe.let_through(1);
    assert_eq!(drain.wait(MINUTE).await, 1);
    probe.open();
    assert_eq!(drain.wait(MINUTE).await, 0);
    assert_eq!((drain.running(), probe.effects()), (0, 2));
}

tokio::task_local! {
    static TENANT: &'static str;
}

#[tokio::test]
async fn the_spawn_closure_carries_task_locals_into_the_run() {
    let handler = || {
        service_fn(|_: Request<RequestBody<Body>>| async {
            let tenant = TENANT.try_with(|tenant| *tenant).unwrap_or("nobody");
            Ok::<_, &'static str>(answer(StatusCode::CREATED, tenant))
        })
    };
    let (spawned, drain) = (Arc::new(AtomicUsize::new(0)), Drain::new());
    let counted = Arc::clone(&spawned);
    let carrying = layer(&memory(), &drain).with_spawn(move |run| {
        counted.fetch_add(1, Ordering::SeqCst);
        let tenant = TENANT.get();
        drop(tokio::spawn(TENANT.scope(tenant, run)));
    });

    let carried = TENANT.scope("alice", async {
        let service = carrying.layer(handler());
        let plain = layer(&memory(), &drain).layer(handler());
        (
            send(&service, post("k", "{}")).await,
            send(&plain, post("k", "{}")).await,
        )
    });
    let (carried, plain) = carried.await;

    assert_eq!((carried.text(), plain.text()), ("alice", "nobody"));
    assert_eq!(spawned.load(Ordering::SeqCst), 1);
}

#[test]
fn a_caller_dropped_outside_of_its_runtime_leaves_no_store_call_half_done() {
    let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
    store.then(Call::Reserve, Fault::AnswersLate);
    let service = layer(&store, &drain).layer(probe.service::<Body>());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut call = Box::pin(service.clone().oneshot(post("k", "{}")));
    runtime.block_on(async {
        tokio::select! {
            biased;
            _ = &mut call => panic!("the store hangs"),
            () = store.reached(Call::Reserve, 1) => {}
        }
    });
    drop(call);

    runtime.block_on(async {
        store.let_go();
        assert_eq!(drain.wait(MINUTE).await, 0);
        store.all_calls_ended().await;
        assert_eq!((probe.runs(), store.count(Call::Release)), (0, 1));
        assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");
    });
}

#[test]
fn a_runtime_that_ends_in_mid_run_leaves_a_claim_whose_lease_ends_and_nothing_counted() {
    for detached in [true, false] {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new().shut());
        let service = layer(&store, &drain)
            .with_detached(detached)
            .layer(probe.service::<Body>());
        let runtime = || {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime")
        };
        let first = runtime();
        let inside = first.enter();
        let caller = spawn_send(&service, post("k", "{}"));
        first.block_on(probe.started(1));
        drop(inside);
        drop(first);
        assert_eq!((drain.running(), probe.effects()), (0, 0));

        let second = runtime();
        let retried = second.block_on(send(&service, post("k", "{}")));
        assert_eq!(retried.rejection(), Some(RejectionKind::InFlight));
        assert!(caller.is_finished());
        assert_eq!(probe.runs(), 1);
    }
}

#[test]
fn an_inline_run_dropped_outside_of_its_runtime_is_settled_all_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // In mid-run, and while the store hangs that is told of its end.
    for (call, calls) in [(Call::Abandon, 1), (Call::Complete, 2)] {
        let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
        let mid_run = call == Call::Abandon;
        let probe = if mid_run { probe.shut() } else { probe };
        store.then(Call::Complete, Fault::Hangs);
        let service = layer(&store, &drain)
            .with_detached(false)
            .layer(probe.service::<Body>());
        let mut caller = Box::pin(service.clone().oneshot(post("k", "{}")));
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = &mut caller => panic!("it is held"),
                () = probe.started(1) => {}
            }
        });
        drop(caller);

        assert_eq!(runtime.block_on(drain.wait(MINUTE)), 0);
        assert_eq!(store.count(call), calls);
        let retried = runtime.block_on(send(&service, post("k", "{}")));
        if mid_run {
            let unknown = Some(RejectionKind::OutcomeUnknown);
            assert_eq!(retried.rejection(), unknown);
        } else {
            assert_eq!((retried.text(), retried.is_replay()), ("run 1", true));
        }
        runtime.block_on(async {
            store.let_go();
            store.all_calls_ended().await;
        });
    }
}

#[tokio::test]
async fn a_run_that_its_spawn_closure_drops_outside_of_a_runtime_is_released() {
    let (store, drain, probe) = (memory(), Drain::new(), Probe::new());
    let dropping = layer(&store, &drain).with_spawn(|run| {
        let dropped = std::thread::spawn(move || drop(run)).join();
        dropped.expect("no panic");
    });
    let service = dropping.layer(probe.service::<Body>());
    let failed = send(&service, post("k", "{}")).await;
    assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
    assert_eq!(drain.wait(MINUTE).await, 0);
    assert_eq!((probe.runs(), store.count(Call::Release)), (0, 1));
}
