//! `OnInFlight::Wait`: a duplicate waits for the first run, holds nothing meanwhile, and ends with its caller.
#![cfg(feature = "memory")]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use support::{
    Body,
    faulty::{Call, Fault, FaultyStore, pass},
    post,
    probe::{Probe, answer, created, spawn_send},
    send,
};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimitLayer};
use tower_idempotency::{
    FingerprintBy, IdempotencyLayer, MemoryStore, OnInFlight, OnStoreFailure, RejectionKind,
    RequestBody, ScopeBy, StoreErrorKind,
    store::{StoreKind, Takeover},
};

const LIMIT: Duration = Duration::from_secs(20);

fn waiting(store: &FaultyStore) -> IdempotencyLayer {
    IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
        .with_on_in_flight(OnInFlight::Wait(LIMIT))
}

fn memory() -> FaultyStore {
    FaultyStore::new(MemoryStore::new())
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_the_same_layer_is_woken_at_once() {
    let (store, probe) = (memory(), Probe::new().shut());
    let service = waiting(&store).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let waiter = spawn_send(&service, post("k", "{}"));
    store.reached(Call::Inspect, 1).await;
    pass(Duration::from_millis(1)).await;

    let opened = Instant::now();
    probe.open();

    assert!(waiter.await.expect("an answer").is_replay());
    assert_eq!(opened.elapsed(), Duration::ZERO);
    assert_eq!(first.await.expect("an answer").text(), "run 1");
    assert_eq!(probe.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_too_when_a_claim_ends_in_the_background() {
    type Case = (Call, fn(&FaultyStore));
    let cases: [Case; 3] = [
        // Its run is dropped; did nothing, which the store is told again after 100 ms; or never began, as its claim was not heard of.
        (Call::Abandon, |_| {}),
        (Call::Release, |store| {
            for _ in 0..2 {
                store.then(Call::Release, Fault::Fails(StoreErrorKind::Unavailable));
            }
        }),
        (Call::Reserve, |store| {
            store.then(
                Call::Reserve,
                Fault::LosesAnswer(StoreErrorKind::Unavailable),
            );
            store.then(Call::Release, Fault::IsSlow(Duration::from_secs(4)));
        }),
    ];
    for (call, script) in cases {
        let store = memory();
        script(&store);
        let probe = Probe::answering(move |run| match (call, run) {
            (Call::Release, 1) => Ok(answer(StatusCode::NOT_FOUND, "")),
            _ => Ok(created(run)),
        });
        let probe = probe.shut();
        let service = waiting(&store)
            .with_detached(false)
            .with_takeover(Takeover::RunAgain)
            .layer(probe.service::<Body>());
        let first = spawn_send(&service, post("k", "{}"));
        if call == Call::Reserve {
            store.reached(Call::Release, 1).await;
        } else {
            probe.started(1).await;
        }
        let waiter = spawn_send(&service, post("k", "{}"));
        // Long enough for it to look seldom.
        pass(Duration::from_millis(3_999)).await;
        let ended = Instant::now();
        if call == Call::Abandon {
            first.abort();
        }
        probe.open();

        assert_eq!(waiter.await.expect("an answer").status(), 201);
        assert!(ended.elapsed() <= Duration::from_millis(110), "{call:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_another_layer_looks_often_at_first_and_then_every_second() {
    let (store, probe) = (memory(), Probe::new().shut());
    let [one, other] = [&store, &store].map(|store| waiting(store).layer(probe.service::<Body>()));
    let first = spawn_send(&one, post("k", "{}"));
    probe.started(1).await;
    let waiter = spawn_send(&other, post("k", "{}"));
    pass(Duration::from_secs(10)).await;
    // At 0, 50, 150, 350, 750 and 1550 ms, and every second from then on; or up to twice as often.
    let looks = store.count(Call::Inspect);
    assert!((14..=27).contains(&looks), "{looks}");

    let opened = Instant::now();
    probe.open();

    assert!(waiter.await.expect("an answer").is_replay());
    assert!(opened.elapsed() <= Duration::from_secs(1));
    assert_eq!(first.await.expect("an answer").text(), "run 1");
    assert_eq!((probe.runs(), store.count(Call::Reserve)), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn waiters_of_other_layers_do_not_all_look_at_once() {
    let (store, probe) = (memory(), Probe::new().shut());
    let one = waiting(&store).layer(probe.service::<Body>());
    let first = spawn_send(&one, post("k", "{}"));
    probe.started(1).await;
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            spawn_send(
                &waiting(&store).layer(probe.service::<Body>()),
                post("k", "{}"),
            )
        })
        .collect();
    store.reached(Call::Inspect, 8).await;
    // Of eight second looks, at 25 to 50 ms, some have come by 37 and some have not.
    let mut seen = Vec::new();
    for _ in 0..25 {
        pass(Duration::from_millis(1)).await;
        seen.push(store.count(Call::Inspect));
    }
    pass(Duration::from_millis(12)).await;
    seen.push(store.count(Call::Inspect));
    assert!((9..16).contains(seen.last().expect("one")), "{seen:?}");

    probe.open();
    for waiter in waiters {
        assert!(waiter.await.expect("an answer").is_replay());
    }
    assert_eq!(first.await.expect("an answer").text(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_409_when_its_limit_is_over() {
    let (store, probe) = (memory(), Probe::new().shut());
    let service = waiting(&store).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;

    let asked = Instant::now();
    let refused = send(&service, post("k", "{}")).await;

    assert_eq!(refused.rejection(), Some(RejectionKind::InFlight));
    assert_eq!(asked.elapsed(), LIMIT);
    probe.open();
    assert_eq!(first.await.expect("an answer").text(), "run 1");
    assert_eq!(probe.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn when_the_first_run_did_nothing_exactly_one_waiter_runs_and_the_others_get_its_answer() {
    let store = memory();
    let probe = Probe::answering(|run| match run {
        1 => Ok(answer(StatusCode::NOT_FOUND, "not yet")),
        run => Ok(created(run)),
    });
    let probe = probe.shut();
    let service = waiting(&store).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let waiters = [(); 8].map(|()| spawn_send(&service, post("k", "{}")));
    store.reached(Call::Inspect, 8).await;
    probe.let_through(1);
    probe.started(2).await;
    pass(Duration::from_secs(5)).await;
    assert_eq!(probe.runs(), 2);
    probe.open();

    let mut replays = 0;
    for waiter in waiters {
        let waited = waiter.await.expect("an answer");
        assert_eq!(waited.text(), "run 2");
        replays += usize::from(waited.is_replay());
    }
    assert_eq!(replays, 7);
    assert_eq!(first.await.expect("an answer").text(), "not yet");
    assert_eq!(probe.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_ends_with_its_caller_and_leaves_its_place_to_another() {
    let (store, probe) = (memory(), Probe::new().shut());
    let service = waiting(&store)
        .with_waiter_bounds(1, 1)
        .layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;

    for inspected in 1..=5 {
        let waiter = spawn_send(&service, post("k", "{}"));
        store.reached(Call::Inspect, inspected).await;
        // Its place is taken: this one is refused at once.
        let refused = send(&service, post("k", "{}")).await;
        assert_eq!(refused.rejection(), Some(RejectionKind::InFlight));
        waiter.abort();
        assert!(waiter.await.expect_err("aborted").is_cancelled());
    }
    pass(LIMIT).await;
    assert_eq!(store.count(Call::Inspect), 5, "nobody looks any more");
    probe.open();

    assert_eq!(first.await.expect("an answer").text(), "run 1");
    assert_eq!(probe.runs(), 1);
    store.all_calls_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gives_its_permit_back() {
    let (store, probe) = (memory(), Probe::new().shut());
    let limited = ConcurrencyLimitLayer::new(2).layer(probe.service::<Body>());
    let service = waiting(&store).layer(limited);
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let waiter = spawn_send(&service, post("k", "{}"));
    store.reached(Call::Inspect, 1).await;

    probe.let_through(2);
    let other = send(&service, post("other", "{}")).await;

    assert_eq!(other.text(), "run 2");
    assert!(!waiter.is_finished());
    probe.open();
    assert!(waiter.await.expect("an answer").is_replay());
    assert_eq!(first.await.expect("an answer").text(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_has_no_permit_between_two_looks_either() {
    // There, nothing tells a look that the key is running: it readies the service, and the reservation tells.
    let store = FaultyStore::of_kind(MemoryStore::new(), StoreKind::Transaction);
    let probe = Probe::new().shut();
    let service =
        waiting(&store).layer(ConcurrencyLimitLayer::new(2).layer(probe.service::<Body>()));
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let waiter = spawn_send(&service, post("k", "{}"));
    for round in 1..=5 {
        store.reached(Call::Inspect, round).await;
        pass(Duration::from_millis(1)).await;
        let asked = Instant::now();
        probe.let_through(1 + round);
        let other = send(&service, post(&format!("other-{round}"), "{}")).await;
        assert_eq!(other.text(), format!("run {}", 1 + round));
        assert_eq!(asked.elapsed(), Duration::ZERO, "it found a permit");
    }
    assert!(!waiter.is_finished());
    probe.open();
    assert!(waiter.await.expect("an answer").is_replay());
    assert_eq!(first.await.expect("an answer").text(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_needs_no_permit_to_be_told_that_the_outcome_is_unknown() {
    let (store, probe) = (
        memory(),
        Probe::answering(|_| Ok(answer(StatusCode::BAD_GATEWAY, "?"))),
    );
    let probe = probe.shut();
    let service =
        waiting(&store).layer(ConcurrencyLimitLayer::new(2).layer(probe.service::<Body>()));
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let waiter = spawn_send(&service, post("k", "{}"));
    store.reached(Call::Inspect, 1).await;
    // One of these has the second permit, and the other one gets the first.
    let others = ["one", "two"].map(|key| spawn_send(&service, post(key, "{}")));
    probe.started(2).await;
    let opened = Instant::now();
    probe.let_through(1);
    probe.started(3).await;

    let refused = waiter.await.expect("an answer");

    assert_eq!(refused.rejection(), Some(RejectionKind::OutcomeUnknown));
    assert_eq!((opened.elapsed(), probe.runs()), (Duration::ZERO, 3));
    assert_eq!(first.await.expect("an answer").text(), "?");
    probe.open();
    for other in others {
        assert_eq!(other.await.expect("an answer").text(), "?");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_takes_over_from_a_run_with_another_form_of_fingerprint() {
    let store = memory();
    let probe = Probe::answering(|run| match run {
        1 => Ok(answer(StatusCode::BAD_GATEWAY, "?")),
        run => Ok(created(run)),
    });
    let probe = probe.shut();
    let [one, other] = [FingerprintBy::exact(), FingerprintBy::json()].map(|form| {
        let layer = waiting(&store).with_takeover(Takeover::RunAgain);
        layer.with_fingerprint(form).layer(probe.service::<Body>())
    });
    let first = spawn_send(&one, post("k", "{}"));
    probe.started(1).await;
    let waiter = spawn_send(&other, post("k", "{}"));
    store.reached(Call::Inspect, 1).await;

    probe.open();

    let waited = waiter.await.expect("an answer");
    assert_eq!((waited.text(), waited.is_replay()), ("run 2", false));
    assert_eq!((probe.runs(), probe.context(2).attempt()), (2, 2));
    assert_eq!(first.await.expect("an answer").text(), "?");
    assert!(send(&one, post("k", "{}")).await.is_replay());
}

/// Fails to become ready, or never does, once it was told to.
#[derive(Clone)]
struct Unready<S> {
    inner: S,
    told: Arc<AtomicBool>,
    readiness: Poll<Result<(), &'static str>>,
}

impl<S> Service<Request<RequestBody<Body>>> for Unready<S>
where
    S: Service<Request<RequestBody<Body>>, Response = Response<Full<bytes::Bytes>>>,
    S: Service<Request<RequestBody<Body>>, Error = &'static str>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        match self.told.load(Ordering::SeqCst) {
            true => self.readiness,
            false => self.inner.poll_ready(cx),
        }
    }

    fn call(&mut self, request: Request<RequestBody<Body>>) -> S::Future {
        self.inner.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_may_run_gets_the_service_s_own_readiness_within_its_limit() {
    for readiness in [Poll::Ready(Err("closed")), Poll::Pending] {
        let store = memory();
        let probe =
            Probe::answering(|_| Ok(answer(StatusCode::NOT_FOUND, "no such account"))).shut();
        let told = Arc::new(AtomicBool::new(false));
        let service = waiting(&store).layer(Unready {
            inner: probe.service::<Body>(),
            told: Arc::clone(&told),
            readiness,
        });
        let first = spawn_send(&service, post("k", "{}"));
        probe.started(1).await;
        let asked = Instant::now();
        let waiter = tokio::spawn(service.clone().oneshot(post("k", "{}")));
        store.reached(Call::Inspect, 1).await;

        told.store(true, Ordering::SeqCst);
        probe.open();
        let waited = waiter.await.expect("no panic");

        match readiness {
            Poll::Ready(_) => assert_eq!(waited.expect_err("not ready"), "closed"),
            Poll::Pending => {
                let refused = support::read(waited.expect("a response")).await;
                assert_eq!(refused.rejection(), Some(RejectionKind::InFlight));
                assert_eq!(asked.elapsed(), LIMIT);
            }
        }
        assert_eq!(first.await.expect("an answer").status(), 404);
        // It readied the service before it reserved: no claim is left behind.
        assert_eq!((probe.runs(), store.count(Call::Reserve)), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_key_goes_to_another_request_gets_422_while_that_runs() {
    for form in [FingerprintBy::exact(), FingerprintBy::json()] {
        let store = memory();
        let probe =
            Probe::answering(|_| Ok(answer(StatusCode::NOT_FOUND, "no such account"))).shut();
        let [one, other] = [form, FingerprintBy::exact()].map(|form| {
            waiting(&store)
                .with_fingerprint(form)
                .layer(probe.service::<Body>())
        });
        let first = spawn_send(&one, post("k", "{}"));
        probe.started(1).await;
        let waiter = spawn_send(&other, post("k", "{}"));
        store.reached(Call::Inspect, 1).await;

        probe.let_through(1);
        assert_eq!(first.await.expect("an answer").status(), 404);
        let second = spawn_send(&one, post("k", "{\"other\":1}"));
        probe.started(2).await;

        let waited = waiter.await.expect("an answer");
        assert_eq!(waited.rejection(), Some(RejectionKind::KeyReused));
        probe.open();
        assert_eq!(second.await.expect("an answer").status(), 404);
        assert_eq!(probe.runs(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_can_not_look_gets_503_and_the_first_run_goes_on() {
    let faults = [
        Fault::Fails(StoreErrorKind::Unavailable),
        Fault::Fails(StoreErrorKind::Other),
        Fault::Hangs,
        Fault::Panics,
    ];
    for fault in faults {
        let (store, probe) = (memory(), Probe::new().shut());
        store.then(Call::Inspect, fault);
        let service = waiting(&store).layer(probe.service::<Body>());
        let first = spawn_send(&service, post("k", "{}"));
        probe.started(1).await;

        let refused = send(&service, post("k", "{}")).await;

        let kind = Some(RejectionKind::StoreUnavailable);
        assert_eq!(refused.rejection(), kind, "{fault:?}");
        probe.open();
        assert_eq!(first.await.expect("an answer").text(), "run 1");
        assert!(send(&service, post("k", "{}")).await.is_replay());
        assert_eq!(probe.runs(), 1);
        store.let_go();
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_reads_the_answer_also_where_nothing_can_be_reserved_any_more() {
    for on_failure in [OnStoreFailure::Refuse, OnStoreFailure::RunUnprotected] {
        let (store, probe) = (memory(), Probe::new().shut());
        let service = waiting(&store)
            .with_on_store_failure(on_failure)
            .layer(probe.service::<Body>());
        let first = spawn_send(&service, post("k", "{}"));
        probe.started(1).await;
        let waiters = [(); 8].map(|()| spawn_send(&service, post("k", "{}")));
        store.reached(Call::Inspect, 8).await;

        store.always(Call::Reserve, Fault::Fails(StoreErrorKind::Unavailable));
        probe.open();

        for waiter in waiters {
            assert!(waiter.await.expect("an answer").is_replay());
        }
        assert_eq!(first.await.expect("an answer").text(), "run 1");
        let calls = [Call::Reserve, Call::Release].map(|call| store.count(call));
        assert_eq!((probe.runs(), calls), (1, [9, 0]));
    }
}

#[test]
#[should_panic(expected = "with_on_in_flight(Wait)")]
fn a_wait_for_ever_is_refused() {
    let layer = IdempotencyLayer::new(MemoryStore::new(), ScopeBy::single_tenant())
        .with_on_in_flight(OnInFlight::Wait(Duration::MAX));
    drop(layer.layer(Probe::new().service::<Body>()));
}
