//! How a run ends, and what becomes of its key.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderValue, Request};
use tokio::time::Instant;
use tower::{Layer, service_fn};
use tower_idempotency::{
    Drain, IdempotencyContext, IdempotencyKey, KeyFormat, RecordKey, RejectionKind, RequestBody,
    Scope, Verdict,
    store::{RecordState, Takeover},
};

use crate::{
    app::{Gate, created, handler, respond, spawn},
    backends::Backend,
    sqlite_support::until,
    support::{Body, Runs, post, send},
};

pub async fn a_failed_run_is_undone_or_its_outcome_is_unknown(backend: Backend) {
    for takeover in [Takeover::Refuse, Takeover::RunAgain] {
        let runs = Runs::default();
        let service =
            backend
                .layer()
                .with_takeover(takeover)
                .layer(handler(&runs, None, |run| async move {
                    match run {
                        1 => respond(503, "not now"),
                        2 => panic!("a fault in the handler"),
                        _ => respond(201, "done"),
                    }
                }));
        let key = format!("{takeover:?}");
        let mut seen = Vec::new();
        for _ in 0..4 {
            let answer = send(&service, post(&key, "{}")).await;
            seen.push((answer.status().as_u16(), answer.rejection()));
        }
        if takeover == Takeover::Refuse && !backend.is_transaction() {
            let unknown = (409, Some(RejectionKind::OutcomeUnknown));
            assert_eq!(seen, [(503, None), unknown, unknown, unknown]);
        } else {
            let failed = (500, Some(RejectionKind::HandlerFailed));
            assert_eq!(seen, [(503, None), failed, (201, None), (201, None)]);
        }
    }
    if backend.is_transaction() {
        assert_eq!(
            backend.effects(&Runs::default()).await,
            2,
            "one of each key"
        );
    }
}

pub async fn a_refusal_of_the_handler_may_be_retried_unless_it_is_final(backend: Backend) {
    let runs = Runs::default();
    let service = backend
        .layer()
        .layer(handler(&runs, None, |run| async move {
            let mut response = respond(409, format!("taken {run}"));
            if run == 2 {
                response.extensions_mut().insert(Verdict::Save);
            }
            response
        }));
    let texts = [(); 3].map(|()| send(&service, post("k", "{}")));
    let [first, second, third] = texts;
    assert_eq!(first.await.text(), "taken 1");
    assert_eq!(second.await.text(), "taken 2");
    let third = third.await;
    assert!(third.is_replay() && third.text() == "taken 2");
    if backend.is_transaction() {
        assert_eq!(
            backend.effects(&runs).await,
            1,
            "a saved 409 commits its writes, a discarded one doesn't"
        );
    }
}

pub async fn a_run_goes_on_when_its_caller_has_gone(backend: Backend) {
    let (runs, gate) = (Runs::default(), Arc::<Gate>::default());
    let drain = Drain::new();
    let layer = backend.layer().with_drain(drain.clone());
    let service = layer.layer(handler(&runs, Some(Arc::clone(&gate)), created));
    let caller = spawn(&service, post("k", "{}"));
    gate.started.notified().await;
    caller.abort();
    assert!(caller.await.expect_err("cancelled").is_cancelled());
    assert_eq!(drain.running(), 1);
    gate.open.notify_one();
    assert_eq!(drain.wait(Duration::from_secs(30)).await, 0);
    assert!(send(&service, post("k", "{}")).await.is_replay());
    assert_eq!((runs.count(), backend.effects(&runs).await), (1, 1));
}

pub async fn an_inline_run_that_is_dropped_is_undone_or_unknown(backend: Backend) {
    let (runs, gate) = (Runs::default(), Arc::<Gate>::default());
    let layer = backend.layer().with_detached(false);
    let service = layer.layer(handler(&runs, Some(Arc::clone(&gate)), created));
    let caller = spawn(&service, post("k", "{}"));
    gate.started.notified().await;
    caller.abort();
    assert!(caller.await.expect_err("cancelled").is_cancelled());
    gate.open.notify_one();
    until(async || {
        let answer = send(&service, post("k", "{}")).await;
        answer.rejection() != Some(RejectionKind::InFlight)
    })
    .await;
    let answer = send(&service, post("k", "{}")).await;
    if backend.is_transaction() {
        assert_eq!((answer.text(), backend.effects(&runs).await), ("run 2", 1));
    } else {
        assert_eq!(answer.rejection(), Some(RejectionKind::OutcomeUnknown));
        assert_eq!(runs.count(), 1);
    }
}

pub async fn a_key_is_new_after_its_retention(backend: Backend) {
    let runs = Runs::default();
    // A third of the lease is what a call of the store may take, also on a busy machine.
    let (lease, retention) = (Duration::from_secs(3), Duration::from_secs(3));
    let layer = backend.layer().with_lease(lease).with_retention(retention);
    let service = layer.layer(handler(&runs, None, created));
    let started = Instant::now();
    assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");
    until(async || send(&service, post("k", "{}")).await.text() == "run 2").await;
    assert!(started.elapsed() >= retention);
    assert_eq!((runs.count(), backend.effects(&runs).await), (2, 2));
}

pub async fn fences_grow_from_run_to_run_also_when_a_key_was_free_between_them(backend: Backend) {
    let (runs, fences) = (Runs::default(), Arc::<Mutex<Vec<u64>>>::default());
    let layer = backend.layer().with_takeover(Takeover::RunAgain);
    let service = {
        let (runs, fences) = (runs.clone(), Arc::clone(&fences));
        layer.layer(service_fn(move |request: Request<RequestBody<Body>>| {
            let context = request.extensions().get::<IdempotencyContext>();
            let fence = context.expect("a keyed request").fence();
            fences.lock().expect("no panic").push(fence);
            let status = match runs.add() {
                // Nothing happened.
                1 | 3 => 404,
                // Nobody knows.
                2 => 502,
                _ => 201,
            };
            async move { Ok::<_, Infallible>(respond(status, "")) }
        }))
    };
    for status in [404, 502, 404, 201] {
        let answer = send(&service, post("k", "{}")).await;
        assert_eq!(answer.status().as_u16(), status, "{}", answer.text());
    }
    assert!(send(&service, post("k", "{}")).await.is_replay());
    forget(&backend, "k").await;
    let anew = send(&service, post("k", "{}")).await;
    assert_eq!(anew.status().as_u16(), 201, "{}", anew.text());
    let fences = fences.lock().expect("no panic");
    assert_eq!(fences.len(), 5);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

async fn forget(backend: &Backend, key: &str) {
    let key = IdempotencyKey::new(key).expect("a key");
    let key = RecordKey::derive("", &Scope::single_tenant(), &key);
    assert!(backend.store.forget(&key).await.expect("a database"));
}

pub async fn an_operator_finds_a_record_by_scope_and_header_and_frees_the_key(backend: Backend) {
    let runs = Runs::default();
    let layer = backend.layer().with_namespace("shop");
    let service = layer.layer(handler(&runs, None, created));
    let sent = HeaderValue::from_static("\"8e03978e-40d5\"");
    let scoped = |scope| {
        let mut request = post("", "{}");
        let headers = request.headers_mut();
        headers.insert("idempotency-key", sent.clone());
        headers.insert("x-scope", HeaderValue::from_static(scope));
        request
    };
    for scope in ["tenant-1", "tenant-2"] {
        send(&service, scoped(scope)).await;
    }

    let scope = Scope::new("tenant-1").expect("a scope");
    let key = KeyFormat::default().parse(&sent).expect("a key");
    let record_key = RecordKey::derive("shop", &scope, &key);
    let inspect = async || {
        backend
            .store
            .inspect(&record_key)
            .await
            .expect("a database")
    };
    let RecordState::Completed(saved) = inspect().await.expect("a record").state else {
        panic!("not completed");
    };
    assert_eq!(saved.body().expect("kept"), "run 1");
    for was_there in [true, false] {
        let forgotten = backend.store.forget(&record_key).await;
        assert_eq!(forgotten.expect("a database"), was_there);
    }
    assert!(inspect().await.is_none());

    let again = send(&service, scoped("tenant-1")).await;
    assert_eq!((again.text(), again.is_replay()), ("run 3", false));
    assert!(send(&service, scoped("tenant-1")).await.is_replay());
    let untouched = send(&service, scoped("tenant-2")).await;
    assert_eq!((untouched.text(), untouched.is_replay()), ("run 2", true));
    assert_eq!((runs.count(), backend.effects(&runs).await), (3, 3));
}
