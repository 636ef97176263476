//! Whatever panics, handler or closure: the caller gets an answer, the claim is settled, and the server lives.
#![cfg(feature = "memory")]
mod support;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use support::{
    Body, Runs,
    faulty::{Call, FaultyStore},
    post,
    probe::{Probe, created},
    send,
};
use tower::{Layer, service_fn};
use tower_idempotency::{
    Drain, FingerprintBy, IdempotencyLayer, KeyBy, MemoryStore, RejectionKind, RequestBody,
    ResponsePolicy, Scope, ScopeBy, Verdict, store::Takeover,
};

/// Whether the closures panic.
type Armed = Arc<AtomicBool>;

fn trip(armed: &Armed) {
    assert!(!armed.load(Ordering::SeqCst), "the closure panics");
}

fn disarm(armed: &Armed) -> &Armed {
    armed.store(false, Ordering::SeqCst);
    armed
}

fn layer(store: &FaultyStore, scope: ScopeBy) -> IdempotencyLayer {
    IdempotencyLayer::new(store.clone(), scope).with_takeover(Takeover::RunAgain)
}

#[tokio::test]
async fn a_panic_before_the_reservation_is_500_and_touches_no_store() {
    type Arm = fn(&FaultyStore, Armed) -> IdempotencyLayer;
    let closures: [(&str, Arm); 4] = [
        ("scope", |store, armed| {
            let scope = ScopeBy::parts(move |_| {
                trip(&armed);
                Some(Scope::single_tenant())
            });
            layer(store, scope)
        }),
        ("key from the head", |store, armed| {
            layer(store, ScopeBy::single_tenant()).with_key(KeyBy::parts(move |_| {
                trip(&armed);
                Some("k".to_owned())
            }))
        }),
        ("key from the body", |store, armed| {
            layer(store, ScopeBy::single_tenant()).with_key(KeyBy::body(move |_, _| {
                trip(&armed);
                Some("k".to_owned())
            }))
        }),
        ("fingerprint", |store, armed| {
            let fingerprint = FingerprintBy::by(move |_, body| {
                trip(&armed);
                body.to_vec()
            });
            layer(store, ScopeBy::single_tenant()).with_fingerprint(fingerprint)
        }),
    ];
    for (name, arm) in closures {
        let store = FaultyStore::new(MemoryStore::new());
        let (probe, armed) = (Probe::new(), Armed::new(AtomicBool::new(true)));
        let service = arm(&store, Arc::clone(&armed)).layer(probe.service::<Body>());

        let failed = send(&service, post("k", "{}")).await;
        assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
        assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR, "{name}");
        assert_eq!((probe.runs(), store.count(Call::Reserve)), (0, 0), "{name}");

        disarm(&armed);
        assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");
    }
}

#[tokio::test]
async fn a_panic_of_the_policy_counts_as_a_handler_that_panicked() {
    let store = FaultyStore::new(MemoryStore::new());
    let (probe, armed) = (Probe::new(), Armed::new(AtomicBool::new(true)));
    let tripping = Arc::clone(&armed);
    let service = layer(&store, ScopeBy::single_tenant())
        .with_response_policy(ResponsePolicy::by(move |_| {
            trip(&tripping);
            Verdict::Save
        }))
        .layer(probe.service::<Body>());

    let failed = send(&service, post("k", "{}")).await;
    assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
    assert_eq!((probe.effects(), store.count(Call::Abandon)), (1, 1));

    disarm(&armed);
    assert_eq!(send(&service, post("k", "{}")).await.text(), "run 2");
    assert_eq!(probe.context(2).attempt(), 2);
}

#[tokio::test]
async fn a_panic_of_the_rejection_closure_gives_the_default_refusal() {
    let store = FaultyStore::new(MemoryStore::new());
    let probe = Probe::new();
    let service = layer(&store, ScopeBy::single_tenant())
        .require_key()
        .with_rejection(|_| panic!("the closure panics"))
        .layer(probe.service::<Body>());
    send(&service, post("k", "{}")).await;

    let reused = send(&service, post("k", "{ }")).await;
    assert_eq!(reused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(reused.text().contains("key_reused"));
    let missing = Request::post("/charges").body(Body::default());
    let missing = send(&service, missing.expect("a request")).await;
    assert_eq!(missing.status(), StatusCode::BAD_REQUEST);
    assert!(missing.text().contains("missing_key"));
    assert_eq!(probe.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_spawn_closure_that_panics_or_drops_the_run_is_500_and_the_claim_is_released() {
    for panics in [true, false] {
        let store = FaultyStore::new(MemoryStore::new());
        let (probe, armed) = (Probe::new(), Armed::new(AtomicBool::new(true)));
        let (tripping, drain) = (Arc::clone(&armed), Drain::new());
        let service = layer(&store, ScopeBy::single_tenant())
            .with_drain(drain.clone())
            .with_spawn(move |run| {
                if panics {
                    trip(&tripping);
                }
                match tripping.load(Ordering::SeqCst) {
                    true => drop(run),
                    false => drop(tokio::spawn(run)),
                }
            })
            .layer(probe.service::<Body>());

        let failed = send(&service, post("k", "{}")).await;
        assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
        assert_eq!(drain.wait(Duration::from_secs(60)).await, 0);
        assert_eq!((probe.runs(), store.count(Call::Release)), (0, 1));

        disarm(&armed);
        assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");
        assert_eq!(probe.context(1).attempt(), 1);
    }
}

#[tokio::test]
async fn a_handler_that_panics_in_its_call_and_not_in_its_future_is_500_too() {
    for detached in [true, false] {
        let store = FaultyStore::new(MemoryStore::new());
        let probe = Probe::new();
        let (handler, called) = (probe.clone(), Armed::new(AtomicBool::new(true)));
        let tripping = Arc::clone(&called);
        let service = layer(&store, ScopeBy::single_tenant())
            .with_detached(detached)
            .layer(tower::service_fn(
                move |request: Request<tower_idempotency::RequestBody<Body>>| {
                    trip(&tripping);
                    let handler = handler.clone();
                    async move { handler.run(request.extensions().get()).await }
                },
            ));

        let failed = send(&service, post("k", "{}")).await;
        assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
        assert_eq!(store.count(Call::Abandon), 1);

        disarm(&called);
        let retried = send(&service, post("k", "{}")).await;
        assert_eq!((retried.text(), probe.context(1).attempt()), ("run 1", 2));
    }
}

/// Answers, and panics when it is dropped.
struct AnswersAndPanics;

impl Future for AnswersAndPanics {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(Response::new(Body::default())))
    }
}

impl Drop for AnswersAndPanics {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "the handler panics as it goes");
    }
}

#[tokio::test]
async fn a_handler_that_panics_when_it_is_dropped_is_settled_before_the_answer() {
    for detached in [true, false] {
        let store = FaultyStore::new(MemoryStore::new());
        let runs = Runs::default();
        let counted = runs.clone();
        let service = IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
            .with_detached(detached)
            .layer(service_fn(move |_: Request<RequestBody<Body>>| {
                counted.add();
                AnswersAndPanics
            }));
        let failed = send(&service, post("k", "{}")).await;
        assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
        let again = send(&service, post("k", "{}")).await;
        assert_eq!(again.rejection(), Some(RejectionKind::OutcomeUnknown));
        assert_eq!((runs.count(), store.count(Call::Abandon)), (1, 1));
    }
}

#[tokio::test]
async fn a_handler_that_panics_in_mid_run_takes_no_other_request_with_it() {
    for detached in [true, false] {
        let store = FaultyStore::new(MemoryStore::new());
        let probe = Probe::answering(|run| match run {
            1 => panic!("the handler panics"),
            run => Ok(created(run)),
        });
        let service = layer(&store, ScopeBy::single_tenant())
            .with_detached(detached)
            .layer(probe.clone().shut().service::<Body>());
        let panicking = support::probe::spawn_send(&service, post("k", "{}"));
        probe.started(1).await;
        let other = support::probe::spawn_send(&service, post("other", "{}"));
        probe.started(2).await;
        probe.open();

        let failed = panicking.await.expect("an answer");
        assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
        assert_eq!(other.await.expect("an answer").text(), "run 2");
        assert_eq!(send(&service, post("k", "{}")).await.text(), "run 3");
    }
}
