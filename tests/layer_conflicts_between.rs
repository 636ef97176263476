//! Between two runs of a handler whose transaction lost: the key may be taken, the service not ready, the caller gone.
#![cfg(feature = "memory")]
mod support;

use std::{
    collections::BTreeSet,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use support::{
    Answer, Body,
    database::{Database, End},
    faulty::{Call, Fault, FaultyStore, pass, yield_times},
    handler::layer,
    post,
    probe::{Probe, spawn_send},
    send,
};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_idempotency::{Drain, OnInFlight, RejectionKind, RequestBody, StoreErrorKind};

const MILLISECOND: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

/// While the loser's rollback is on its way back, something happens to the key.
async fn loser_meets(
    on_in_flight: OnInFlight,
    other: Option<(&'static str, bool)>,
    fault: Option<Fault>,
) -> (Answer, Probe) {
    let database = Database::new();
    database.lose(End::Complete, 1);
    let (store, probe) = (FaultyStore::new(database.clone()), Probe::new());
    store.then(Call::Complete, Fault::AnswersLate);
    let drain = Drain::new();
    let service = layer(store.clone())
        .with_transaction_retries(3)
        .with_on_in_flight(on_in_flight)
        .with_drain(drain.clone())
        .layer(probe.service::<Body>());
    let loser = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let probe = probe.shut();
    store.reached(Call::Complete, 1).await;
    let other = other.map(|(body, ends)| (spawn_send(&service, post("k", body)), ends));
    if let Some((_, ends)) = &other {
        probe.started(2).await;
        if *ends {
            probe.let_through(2);
            store.reached(Call::Complete, 2).await;
        }
    }
    if let Some(fault) = fault {
        store.then(Call::Reserve, fault);
    }
    store.let_go();
    if on_in_flight != OnInFlight::Reject {
        store.reached(Call::Inspect, 1).await;
        probe.open();
    }
    let loser = loser.await.expect("an answer");
    probe.open();
    if let Some((other, _)) = other {
        assert_eq!(other.await.expect("an answer").text(), "run 2");
    }
    assert_eq!(drain.wait(Duration::from_secs(60)).await, 0);
    store.all_calls_ended().await;
    assert_eq!(database.open(), 0);
    (loser, probe)
}

#[tokio::test(start_paused = true)]
async fn who_finds_the_key_taken_or_the_store_gone_before_the_retry_is_told_so() {
    let reject = OnInFlight::Reject;
    let (told, probe) = loser_meets(reject, Some(("{}", true)), None).await;
    assert_eq!((told.text(), told.is_replay()), ("run 2", true));
    assert_eq!(probe.runs(), 2);

    for (other, refusal) in [
        (("{}", false), RejectionKind::InFlight),
        (("[]", false), RejectionKind::KeyReused),
        (("[]", true), RejectionKind::KeyReused),
    ] {
        let (told, probe) = loser_meets(reject, Some(other), None).await;
        assert_eq!(told.rejection(), Some(refusal), "{other:?}");
        assert_eq!(probe.runs(), 2);
    }

    for (fault, refusal) in [
        (
            Fault::Fails(StoreErrorKind::Unavailable),
            RejectionKind::StoreUnavailable,
        ),
        (Fault::Fails(StoreErrorKind::Full), RejectionKind::StoreFull),
        (
            Fault::IsSlow(Duration::from_secs(30)),
            RejectionKind::StoreUnavailable,
        ),
        (Fault::Panics, RejectionKind::StoreUnavailable),
    ] {
        let (told, probe) = loser_meets(reject, None, Some(fault)).await;
        assert_eq!(told.rejection(), Some(refusal), "{fault:?}");
        assert_eq!(probe.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_in_flight_before_the_retry_is_waited_for_where_requests_wait() {
    let wait = OnInFlight::Wait(Duration::from_secs(60));
    let (told, probe) = loser_meets(wait, Some(("{}", false)), None).await;
    assert_eq!((told.text(), told.is_replay()), ("run 2", true));
    assert_eq!(probe.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_retry_holds_no_permit_before_it_has_a_ready_service() {
    let database = Database::new();
    database.lose(End::Complete, 2);
    let probe = Probe::new();
    let service = layer(database.clone())
        .with_transaction_retries(2)
        .layer(ConcurrencyLimitLayer::new(1).layer(probe.service::<Body>()));
    assert_eq!(send(&service, post("k", "{}")).await.text(), "run 3");
}

/// A service whose clones get ready in their own ways.
struct Moody {
    probe: Probe,
    ready: fn(usize) -> Poll<Result<(), &'static str>>,
}

impl Clone for Moody {
    fn clone(&self) -> Self {
        Self {
            probe: self.probe.clone(),
            ready: self.ready,
        }
    }
}

impl Service<Request<RequestBody<Body>>> for Moody {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, &'static str>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        (self.ready)(self.probe.runs())
    }

    fn call(&mut self, _: Request<RequestBody<Body>>) -> Self::Future {
        let probe = self.probe.clone();
        Box::pin(async move { probe.run(None).await })
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_does_not_get_ready_again_leaves_the_key_free() {
    use Poll::{Pending, Ready};
    type Mood = fn(usize) -> Poll<Result<(), &'static str>>;
    let cases: [(Mood, Result<RejectionKind, &str>); 3] = [
        (
            |runs| if runs == 1 { Pending } else { Ready(Ok(())) },
            Ok(RejectionKind::NotCommitted),
        ),
        (
            |runs| Ready(if runs == 1 { Err("broken") } else { Ok(()) }),
            Err("broken"),
        ),
        (
            |runs| match runs {
                1 => panic!("a service that panics"),
                _ => Ready(Ok(())),
            },
            Ok(RejectionKind::HandlerFailed),
        ),
    ];
    for detached in [true, false] {
        for (ready, expected) in cases {
            let (database, drain, probe) = (Database::new(), Drain::new(), Probe::new());
            database.lose(End::Complete, 1);
            let service = layer(database.clone())
                .with_transaction_retries(1)
                .with_detached(detached)
                .with_drain(drain.clone())
                .layer(Moody {
                    probe: probe.clone(),
                    ready,
                });

            let answer = service.oneshot(post("k", "{}")).await;

            match expected {
                Ok(refusal) => {
                    let response = answer.expect("a response");
                    assert_eq!(response.extensions().get(), Some(&refusal));
                }
                Err(error) => assert_eq!(answer.expect_err("an error"), error),
            }
            assert_eq!((probe.runs(), database.begun().len()), (1, 1));
            assert_eq!((database.open(), drain.running()), (0, 0));
        }
    }
}

/// Polls a future so often, a millisecond apart, and then drops it.
async fn drop_after<F: Future>(polls: usize, future: F) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if polled.is_ready() {
            return;
        }
        tokio::time::advance(MILLISECOND).await;
    }
}

/// Drops a request, whose first transaction loses, after any number of polls. Tells at how many runs and open transactions.
async fn dropped_anywhere(detached: bool) -> BTreeSet<(usize, usize)> {
    let mut dropped_at = BTreeSet::new();
    for polls in 0..80 {
        let (database, drain, probe) = (Database::new(), Drain::new(), Probe::new());
        database.lose(End::Complete, 1);
        let store = FaultyStore::new(database.clone());
        for call in [Call::Reserve, Call::Complete, Call::Release, Call::Abandon] {
            store.always(call, Fault::IsPolled(2));
        }
        let runs = probe.clone();
        let handler = service_fn(move |_: Request<RequestBody<Body>>| {
            let probe = runs.clone();
            async move {
                let answer = probe.run(None).await;
                yield_times(4).await;
                answer
            }
        });
        let service = layer(store.clone())
            .with_transaction_retries(1)
            .with_detached(detached)
            .with_drain(drain.clone())
            .layer(handler);

        drop_after(polls, service.clone().oneshot(post("k", "{}"))).await;
        dropped_at.insert((probe.runs(), database.open()));
        assert_eq!(drain.wait(MINUTE).await, 0, "{polls} polls");
        store.all_calls_ended().await;
        assert_eq!(database.open(), 0, "{polls} polls");
        let committed = database.commits();
        let runs = probe.runs();

        let retried = send(&service, post("k", "{}")).await;

        assert_eq!(retried.status(), StatusCode::CREATED, "{polls} polls");
        assert_eq!(retried.is_replay(), committed == 1, "{polls} polls");
        assert_eq!(database.commits(), 1, "{polls} polls");
        if detached {
            // It never started, or it went on to its end.
            assert!(runs == 0 || (runs, committed) == (2, 1), "{polls} polls");
        }
        assert_eq!(drain.wait(MINUTE).await, 0);
        assert_eq!(database.open(), 0);
    }
    dropped_at
}

/// In the first run, in the pause after it, in the second run, and after that.
const PLACES: [(usize, usize); 4] = [(1, 1), (1, 0), (2, 1), (2, 0)];

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_does_not_end_the_retries() {
    let dropped_at = dropped_anywhere(true).await;
    for place in PLACES {
        assert!(dropped_at.contains(&place), "{place:?}: {dropped_at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_inline_request_that_is_dropped_leaves_no_transaction_behind() {
    let dropped_at = dropped_anywhere(false).await;
    for place in PLACES {
        assert!(dropped_at.contains(&place), "{place:?}: {dropped_at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_counts_a_request_once_also_between_two_runs() {
    let (database, drain, probe) = (Database::new(), Drain::new(), Probe::new());
    database.lose(End::Complete, 2);
    let runs = probe.clone();
    let handler = service_fn(move |_: Request<RequestBody<Body>>| {
        let probe = runs.clone();
        async move {
            let answer = probe.run(None).await;
            pass(5 * MILLISECOND).await;
            answer
        }
    });
    let service = layer(database.clone())
        .with_transaction_retries(2)
        .with_drain(drain.clone())
        .layer(handler);
    let request = spawn_send(&service, post("k", "{}"));
    let mut seen = BTreeSet::new();
    while !request.is_finished() {
        if probe.runs() > 0 && database.commits() == 0 {
            assert_eq!(drain.running(), 1, "after {} runs", probe.runs());
        }
        seen.insert((probe.runs(), database.open()));
        tokio::time::advance(MILLISECOND).await;
    }
    assert_eq!(request.await.expect("an answer").text(), "run 3");
    assert_eq!(drain.running(), 0);
    for moment in [(1, 1), (1, 0), (2, 1), (2, 0), (3, 1)] {
        assert!(seen.contains(&moment), "{moment:?}: {seen:?}");
    }
}
