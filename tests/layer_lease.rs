//! Leases: a run keeps its key while it lives, loses it when it doesn't, and learns of that; and every way a run can fail.
#![cfg(feature = "memory")]
mod support;

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use support::{
    Answer, Body,
    faulty::{Call, Fault, FaultyStore, pass},
    post,
    probe::{Probe, answer, created, spawn_send},
    send,
};
use tokio::{sync::Notify, time::Instant};
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, RejectionKind, RequestBody, ScopeBy, StoreErrorKind,
    store::{RecordState, Store, Takeover},
};

const LEASE: Duration = Duration::from_secs(9);
const UNAVAILABLE: Fault = Fault::Fails(StoreErrorKind::Unavailable);

fn memory() -> FaultyStore {
    FaultyStore::new(MemoryStore::new())
}

fn layer(store: &FaultyStore, takeover: Takeover) -> IdempotencyLayer {
    IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
        .with_lease(LEASE)
        .with_takeover(takeover)
}

fn assert_refused(answer: &Answer, kind: RejectionKind) {
    assert_eq!(answer.rejection(), Some(kind), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_run_longer_than_its_lease_keeps_its_key_by_renewing_it_every_third() {
    let (store, probe) = (memory(), Probe::new().shut());
    let service = layer(&store, Takeover::RunAgain).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    for renewals in 1..=12 {
        store.reached(Call::Renew, renewals).await;
        pass(LEASE / 6).await;
        let duplicate = send(&service, post("k", "{}")).await;
        assert_refused(&duplicate, RejectionKind::InFlight);
    }
    probe.open();

    assert_eq!(first.await.expect("an answer").text(), "run 1");
    assert!(!probe.context(1).claim_lost());
    assert!(send(&service, post("k", "{}")).await.is_replay());
    assert_eq!(probe.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_counts_from_when_the_store_was_asked_for_it() {
    let (store, probe) = (memory(), Probe::new().shut());
    store.then(Call::Reserve, Fault::IsSlow(LEASE / 4));
    let service = layer(&store, Takeover::RunAgain).layer(probe.service::<Body>());
    let asked = Instant::now();
    let first = spawn_send(&service, post("k", "{}"));

    store.reached(Call::Renew, 1).await;

    let since = asked.elapsed();
    assert!(since < LEASE / 2, "{since:?}");
    probe.open();
    assert_eq!(first.await.expect("an answer").text(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn each_of_many_runs_is_renewed_for_as_long_as_it_lasts() {
    const RUNS: u32 = 1_000;
    let store = memory();
    let handler = service_fn(async |request: Request<RequestBody<Body>>| {
        let thirds = request.headers()["thirds"].to_str().expect("a number");
        let thirds: u32 = thirds.parse().expect("a number");
        pass(LEASE / 3 * thirds + LEASE / 6).await;
        Ok::<_, Infallible>(created(1))
    });
    let service = layer(&store, Takeover::RunAgain).layer(handler);
    let mut runs = Vec::new();
    for run in 0..RUNS {
        let mut request = post(&format!("k{run}"), "{}");
        let thirds = (run % 5).to_string().parse().expect("a header");
        request.headers_mut().insert("thirds", thirds);
        runs.push(spawn_send(&service, request));
        pass(Duration::from_millis(u64::from(run % 3))).await;
    }
    for run in runs {
        assert_eq!(run.await.expect("an answer").status(), StatusCode::CREATED);
    }
    pass(LEASE * 2).await;

    let renewals: u32 = (0..RUNS).map(|run| run % 5).sum();
    assert_eq!(store.count(Call::Renew), renewals as usize);
}

/// Tokio lets a task that always finds something ready make so many steps, and then nothing in it makes one until its next turn.
#[tokio::test]
async fn a_run_that_uses_up_its_turns_is_renewed_all_the_same() {
    let store = memory();
    let renewals = store.clone();
    let busy = service_fn(move |_request: Request<RequestBody<Body>>| {
        let renewals = renewals.clone();
        async move {
            let started = Instant::now();
            while renewals.count(Call::Renew) < 3 && started.elapsed() < LEASE {
                tokio::task::consume_budget().await;
            }
            Ok::<_, Infallible>(created(renewals.count(Call::Renew).min(3)))
        }
    });
    let layer = layer(&store, Takeover::RunAgain).with_lease(Duration::from_millis(90));

    let answer = send(&layer.layer(busy), post("k", "{}")).await;

    assert_eq!(answer.text(), "run 3");
}

/// On a runtime with another thread that is free to renew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_blocks_its_thread_is_renewed_all_the_same() {
    for detached in [true, false] {
        let store = memory();
        let renewals = store.clone();
        let blocking = service_fn(move |_request: Request<RequestBody<Body>>| {
            let renewals = renewals.clone();
            async move {
                let started = Instant::now();
                while renewals.count(Call::Renew) < 3 && started.elapsed() < LEASE {
                    std::thread::yield_now();
                }
                Ok::<_, Infallible>(created(renewals.count(Call::Renew).min(3)))
            }
        });
        let layer = layer(&store, Takeover::RunAgain)
            .with_lease(Duration::from_millis(90))
            .with_detached(detached);
        let service = layer.layer(blocking);

        // On a worker, which blocks what it has in its hands.
        let answer = spawn_send(&service, post("k", "{}"));

        let answer = answer.await.expect("an answer");
        assert_eq!(answer.text(), "run 3", "detached: {detached}");
    }
}

/// Who has the timers and sockets in his hands is the one who finds the request, and nobody else looks after them while he is blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_blocks_the_thread_that_watches_the_clock_is_renewed_all_the_same() {
    for detached in [true, false] {
        let (store, probe) = (memory(), Probe::new().shut());
        let layer = layer(&store, Takeover::RunAgain)
            .with_lease(Duration::from_millis(300))
            .with_detached(detached);
        // Another run is held already.
        let held = spawn_send(&layer.layer(probe.service::<Body>()), post("held", "{}"));
        probe.started(1).await;
        let renewals = store.clone();
        let blocking = service_fn(move |_request: Request<RequestBody<Body>>| {
            let renewals = renewals.clone();
            async move {
                let (started, enough) = (Instant::now(), renewals.count(Call::Renew) + 2);
                while renewals.count(Call::Renew) < enough && started.elapsed() < LEASE {
                    std::thread::yield_now();
                }
                let renewed = renewals.count(Call::Renew) >= enough;
                Ok::<_, Infallible>(created(usize::from(renewed)))
            }
        });
        let service = layer.layer(blocking);

        let answer = tokio::spawn(async move {
            pass(Duration::from_millis(50)).await;
            send(&service, post("k", "{}")).await
        });

        let answer = answer.await.expect("an answer");
        assert_eq!(answer.text(), "run 1", "detached: {detached}");
        probe.open();
        assert_eq!(held.await.expect("an answer").text(), "run 1");
    }
}

#[test]
fn a_run_is_renewed_beside_another_runtime_that_nobody_drives_any_more() {
    let (store, started) = (memory(), Arc::new(Notify::new()));
    let (renewals, begun) = (store.clone(), Arc::clone(&started));
    let handler = service_fn(move |_request: Request<RequestBody<Body>>| {
        let renewals = renewals.clone();
        begun.notify_one();
        async move {
            let started = Instant::now();
            while renewals.count(Call::Renew) < 3 && started.elapsed() < LEASE {
                tokio::task::yield_now().await;
            }
            Ok::<_, Infallible>(created(renewals.count(Call::Renew).min(3)))
        }
    });
    let layer = layer(&store, Takeover::RunAgain).with_lease(Duration::from_millis(90));
    let service = layer.layer(handler);
    let [left, driven] = [(); 2].map(|()| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().expect("a runtime")
    });
    left.block_on(async {
        drop(spawn_send(&service, post("left", "{}")));
        started.notified().await;
    });

    let answer = driven.block_on(send(&service, post("k", "{}")));

    assert_eq!(answer.text(), "run 3");
}

#[tokio::test(start_paused = true)]
async fn one_renewal_that_fails_hangs_or_panics_costs_nothing() {
    for fault in [UNAVAILABLE, Fault::Hangs, Fault::Panics, Fault::PanicsAfter] {
        let (store, probe) = (memory(), Probe::new().shut());
        store.then(Call::Renew, fault);
        let service = layer(&store, Takeover::RunAgain).layer(probe.service::<Body>());
        let first = spawn_send(&service, post("k", "{}"));
        store.reached(Call::Renew, 4).await;

        let duplicate = send(&service, post("k", "{}")).await;
        assert_refused(&duplicate, RejectionKind::InFlight);
        probe.open();

        assert_eq!(first.await.expect("an answer").text(), "run 1", "{fault:?}");
        assert!(send(&service, post("k", "{}")).await.is_replay());
        assert_eq!(probe.runs(), 1);
        store.let_go();
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_run_that_nobody_took_over_still_completes() {
    for takeover in [Takeover::Refuse, Takeover::RunAgain] {
        let (store, probe) = (memory(), Probe::new().shut());
        store.always(Call::Renew, UNAVAILABLE);
        let service = layer(&store, takeover).layer(probe.service::<Body>());
        let first = spawn_send(&service, post("k", "{}"));
        probe.started(1).await;
        pass(LEASE * 3).await;
        probe.open();

        assert_eq!(first.await.expect("an answer").text(), "run 1");
        assert!(send(&service, post("k", "{}")).await.is_replay());
        assert_eq!(probe.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_taken_over_learns_it_and_its_caller_gets_what_the_record_says() {
    // What the late run does with its claim, and whether the second run has ended by then.
    let late_answers: [fn(usize) -> Response<_>; 3] = [
        created,
        |_| answer(StatusCode::NOT_FOUND, "no such account"),
        |_| answer(StatusCode::BAD_GATEWAY, "no answer"),
    ];
    for late in late_answers {
        for second_has_ended in [true, false] {
            let store = memory();
            let probe = Probe::answering(move |run| match run {
                1 => Ok(late(run)),
                run => Ok(created(run)),
            });
            let probe = probe.shut();
            let service = layer(&store, Takeover::RunAgain).layer(probe.service::<Body>());
            store.always(Call::Renew, UNAVAILABLE);
            let first = spawn_send(&service, post("k", "{}"));
            probe.started(1).await;
            pass(LEASE + Duration::from_secs(1)).await;
            store.heal();

            let second = spawn_send(&service, post("k", "{}"));
            probe.started(2).await;
            pass(LEASE / 3).await;
            assert!(probe.context(1).claim_lost());
            assert!(!probe.context(2).claim_lost());
            if second_has_ended {
                probe.let_through(2);
                while !second.is_finished() {
                    tokio::task::yield_now().await;
                }
            }
            probe.let_through(1);
            let late = first.await.expect("an answer");
            match second_has_ended {
                true => assert_eq!((late.text(), late.is_replay()), ("run 2", true)),
                false => assert_refused(&late, RejectionKind::InFlight),
            }
            probe.open();

            // The late run changed nothing.
            assert_eq!(second.await.expect("an answer").text(), "run 2");
            assert_eq!(send(&service, post("k", "{}")).await.text(), "run 2");
            assert_eq!(probe.runs(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_owner_releases_nobody_else_s_claim() {
    let store = memory();
    let probe = Probe::answering(|_| Ok(answer(StatusCode::NOT_FOUND, "no such account"))).shut();
    let service = layer(&store, Takeover::RunAgain).layer(probe.service::<Body>());
    store.always(Call::Renew, UNAVAILABLE);
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    pass(LEASE + Duration::from_secs(1)).await;
    store.heal();
    let second = spawn_send(&service, post("k", "{}"));
    probe.started(2).await;

    probe.let_through(1);
    assert_refused(&first.await.expect("an answer"), RejectionKind::InFlight);
    let third = send(&service, post("k", "{}")).await;

    assert_refused(&third, RejectionKind::InFlight);
    probe.open();
    assert_eq!(second.await.expect("an answer").status(), 404);
    assert_eq!(probe.runs(), 2);
}

/// How a second attempt ends without an effect.
#[derive(Clone, Copy, Debug)]
enum GivesBack {
    /// Its handler says that nothing happened.
    Discards,
    /// Nobody waits for its claim any more when that comes, so that its handler doesn't run.
    ComesLate,
    /// Nobody ever hears of its claim.
    IsLost,
}

#[tokio::test(start_paused = true)]
async fn a_takeover_that_had_no_effect_doesn_t_forget_the_run_before_it() {
    for second in [GivesBack::Discards, GivesBack::ComesLate, GivesBack::IsLost] {
        let store = memory();
        let probe = Probe::answering(move |run| match (run, second) {
            (1, _) => Ok(answer(StatusCode::BAD_GATEWAY, "charged, perhaps")),
            (2, GivesBack::Discards) => Ok(answer(StatusCode::NOT_FOUND, "no such account")),
            _ => Ok(created(run)),
        });
        let service = layer(&store, Takeover::RunAgain).layer(probe.service::<Body>());
        assert_eq!(send(&service, post("k", "{}")).await.status(), 502);
        match second {
            GivesBack::Discards => {}
            GivesBack::ComesLate => {
                store.then(Call::Reserve, Fault::AnswersLate);
            }
            GivesBack::IsLost => {
                let lost = Fault::LosesAnswer(StoreErrorKind::Unavailable);
                store.then(Call::Reserve, lost);
            }
        }
        let given_back = send(&service, post("k", "{}")).await.status();
        store.let_go();
        pass(Duration::from_secs(1)).await;
        let third = send(&service, post("k", "{}")).await;

        assert!(given_back == 404 || given_back == 503, "{second:?}");
        assert_eq!(third.status(), StatusCode::CREATED, "{second:?}");
        assert!(probe.context(probe.runs()).is_takeover(), "{second:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_the_lease_blocks_the_key_and_then_the_takeover_policy_decides() {
    for takeover in [Takeover::Refuse, Takeover::RunAgain] {
        let (store, probe) = (memory(), Probe::new().shut());
        // As if the process died: the run ends with its caller, and the store doesn't hear of it.
        let inline = layer(&store, takeover).with_detached(false);
        let service = inline.layer(probe.service::<Body>());
        store.then(Call::Abandon, UNAVAILABLE);
        let crashed = spawn_send(&service, post("k", "{}"));
        probe.started(1).await;
        crashed.abort();
        probe.open();
        pass(LEASE - Duration::from_millis(1)).await;
        assert_refused(
            &send(&service, post("k", "{}")).await,
            RejectionKind::InFlight,
        );
        pass(Duration::from_millis(1)).await;

        let other = send(&service, post("k", "{\"other\":1}")).await;
        assert_refused(&other, RejectionKind::KeyReused);
        let retried = send(&service, post("k", "{}")).await;

        if takeover == Takeover::RunAgain {
            assert_eq!(retried.text(), "run 2");
            let (first, second) = (probe.context(1), probe.context(2));
            assert_eq!((first.attempt(), first.is_takeover()), (1, false));
            assert_eq!((second.attempt(), second.is_takeover()), (2, true));
            assert!(second.fence() > first.fence());
            assert_eq!(first.derive_key("card"), second.derive_key("card"));
            assert!(send(&service, post("k", "{}")).await.is_replay());
        } else {
            assert_refused(&retried, RejectionKind::OutcomeUnknown);
            assert_eq!((retried.status().as_u16(), probe.runs()), (409, 1));
            // An operator decides.
            assert!(store.forget(probe.context(1).record_key()).await.is_ok());
            assert_eq!(send(&service, post("k", "{}")).await.text(), "run 2");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_over_its_limit_is_dropped_with_504_and_then_the_takeover_policy_decides() {
    for takeover in [Takeover::Refuse, Takeover::RunAgain] {
        let (store, probe) = (memory(), Probe::new().shut());
        let service = layer(&store, takeover)
            .with_run_limit(Duration::from_secs(60))
            .layer(probe.service::<Body>());
        let asked = Instant::now();
        let answer = send(&service, post("k", "{}")).await;
        assert_refused(&answer, RejectionKind::RunLimit);
        assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(asked.elapsed(), Duration::from_secs(60));
        probe.open();
        pass(LEASE * 2).await;
        assert_eq!((probe.effects(), store.count(Call::Abandon)), (0, 1));
        // Its renewal has stopped, too.
        assert_eq!(store.count(Call::Renew), 60 / 3 - 1);

        assert_retried(&service, &probe, takeover).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_is_abandoned_and_then_the_takeover_policy_decides() {
    type Failing = fn(usize) -> support::probe::Answered;
    let failing: [(Failing, u16); 4] = [
        (|_| panic!("the receipt printer is on fire"), 500),
        (|_| Ok(answer(StatusCode::BAD_GATEWAY, "no mail")), 502),
        (|_| Ok(answer(StatusCode::REQUEST_TIMEOUT, "slow")), 408),
        (|_| Err("the wrapped service's own error"), 0),
    ];
    for ((fails, status), takeover) in failing.into_iter().flat_map(|failing| {
        [Takeover::Refuse, Takeover::RunAgain].map(|takeover| (failing, takeover))
    }) {
        let store = memory();
        let probe = Probe::answering(move |run| match run {
            1 => fails(run),
            run => Ok(created(run)),
        });
        let service = layer(&store, takeover).layer(probe.service::<Body>());
        match service.clone().oneshot(post("k", "{}")).await {
            Ok(response) => assert_eq!(response.status(), status),
            Err(error) => assert_eq!((error, status), ("the wrapped service's own error", 0)),
        }
        assert_eq!((probe.effects(), store.count(Call::Abandon)), (1, 1));

        assert_retried(&service, &probe, takeover).await;
    }
}

/// A retry after run 1 ended without an outcome.
async fn assert_retried<S>(service: &S, probe: &Probe, takeover: Takeover)
where
    S: tower::Service<http::Request<Body>, Error = &'static str> + Clone,
    S: tower::Service<
            http::Request<Body>,
            Response = Response<tower_idempotency::ResponseBody<Body>>,
        >,
{
    let retried = send(service, post("k", "{}")).await;
    if takeover == Takeover::Refuse {
        assert_refused(&retried, RejectionKind::OutcomeUnknown);
        assert_eq!(probe.runs(), 1);
    } else {
        assert_eq!((retried.text(), retried.is_replay()), ("run 2", false));
        assert_eq!(probe.context(2).attempt(), 2);
        assert!(send(service, post("k", "{}")).await.is_replay());
        assert_eq!(probe.runs(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_record_tells_an_operator_how_it_stands() {
    let (store, probe) = (memory(), Probe::new().shut());
    let service = layer(&store, Takeover::Refuse).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let key = *probe.context(1).record_key();
    let state = async || {
        let record = store.inspect(&key).await.expect("the store answers");
        record.expect("a record").state
    };

    assert!(
        matches!(state().await, RecordState::InFlight { lease_left, .. } if lease_left == LEASE)
    );
    probe.open();
    first.await.expect("an answer");
    assert!(matches!(state().await, RecordState::Completed(_)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_not_renewed_any_more_while_it_is_settled() {
    let (store, probe) = (memory(), Probe::new().shut());
    let service = layer(&store, Takeover::RunAgain).layer(probe.service::<Body>());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    // The renewal is due in the middle of the completion. After it, it would read as a claim that was lost.
    pass(LEASE / 3 - Duration::from_secs(1)).await;
    store.then(Call::Complete, Fault::IsSlow(Duration::from_secs(2)));
    probe.open();

    assert_eq!(first.await.expect("an answer").text(), "run 1");
    pass(LEASE).await;
    assert_eq!(store.count(Call::Renew), 0);
    assert!(!probe.context(1).claim_lost());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_lost_is_not_renewed_any_more() {
    let (store, probe) = (memory(), Probe::new().shut());
    let service = layer(&store, Takeover::RunAgain).layer(probe.service::<Body>());
    store.then(Call::Renew, Fault::Fails(StoreErrorKind::LostClaim));
    let first = spawn_send(&service, post("k", "{}"));
    store.reached(Call::Renew, 1).await;
    pass(LEASE * 2).await;
    assert_eq!(store.count(Call::Renew), 1);
    probe.open();
    assert_eq!(first.await.expect("an answer").text(), "run 1");
}
