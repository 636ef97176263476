//! What a client relies on, on each of the stores: the same scenarios for all of them, effects read through a second connection.
#![cfg(all(feature = "memory", feature = "sqlite"))]
#![allow(clippy::panic, reason = "one of the handlers is to panic")]

mod sqlite_support;
mod support;

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use sqlite_support::{File, count, until};
use sqlx::{Sqlite, SqlitePool};
use support::{Answer, Body, Runs, post, send};
use tokio::{
    sync::{Barrier, Notify},
    task::JoinHandle,
    time::Instant,
};
use tower::{Layer, util::BoxCloneSyncService};
use tower_idempotency::{
    Drain, Idempotency, IdempotencyLayer, KeyFormat, MemoryStore, OnInFlight, RecordKey,
    RejectionKind, RequestBody, Scope, ScopeBy, Tx, Verdict,
    sqlite::{LeaseStore, TransactionStore},
    store::{RecordState, Store, StoreKind, Takeover},
};

/// One store under test.
struct Backend {
    store: Arc<dyn Store>,
    /// Where effects are: in the store's database for a transaction store, in the counter of runs elsewhere.
    effects: Option<SqlitePool>,
    _file: Option<File>,
}

async fn memory() -> Backend {
    Backend {
        store: Arc::new(MemoryStore::new()),
        effects: None,
        _file: None,
    }
}

async fn sqlite_lease() -> Backend {
    let file = File::wal();
    let store = LeaseStore::new(file.pool(4).await);
    store.migrate().await.expect("a table");
    Backend {
        store: Arc::new(store),
        effects: None,
        _file: Some(file),
    }
}

async fn sqlite_transaction() -> Backend {
    let file = File::wal();
    let store = TransactionStore::new(file.pool(4).await);
    store.migrate().await.expect("a table");
    let effects = file.pool(1).await;
    sqlx::query("CREATE TABLE effects (n INTEGER)")
        .execute(&effects)
        .await
        .expect("a table");
    Backend {
        store: Arc::new(store),
        effects: Some(effects),
        _file: Some(file),
    }
}

type Handler = BoxCloneSyncService<Request<RequestBody<Body>>, Response<Full<Bytes>>, Infallible>;

impl Backend {
    fn layer(&self) -> IdempotencyLayer {
        IdempotencyLayer::new(
            Arc::clone(&self.store),
            ScopeBy::parts(|parts| {
                parts
                    .headers
                    .get("x-scope")
                    .map_or(Some(Scope::single_tenant()), |scope| {
                        Scope::new(scope.as_bytes())
                    })
            }),
        )
    }

    fn is_transaction(&self) -> bool {
        self.store.kind() == StoreKind::Transaction
    }

    /// How often the effect happened for good.
    async fn effects(&self, runs: &Runs) -> usize {
        match &self.effects {
            None => runs.count(),
            Some(pool) => {
                usize::try_from(count(pool, "SELECT count(*) FROM effects").await).expect("a count")
            }
        }
    }
}

/// A handler that counts its runs, has its effect through `Tx` where there is one, waits if told to, and then answers.
fn handler<F>(
    runs: &Runs,
    gate: Option<Arc<Gate>>,
    answer: impl Fn(usize) -> F + Clone + Send + Sync + 'static,
) -> Handler
where
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let runs = runs.clone();
    BoxCloneSyncService::new(tower::service_fn(
        move |request: Request<RequestBody<Body>>| {
            let (run, gate, answer) = (runs.add(), gate.clone(), answer.clone());
            async move {
                let tx = Tx::<Sqlite>::take(request.extensions());
                if let Some(gate) = &gate {
                    gate.started.notify_one();
                    gate.open.notified().await;
                }
                if let Ok(mut tx) = tx {
                    let effect = sqlx::query("INSERT INTO effects VALUES (1)").execute(&mut *tx);
                    effect.await.expect("an effect");
                }
                Ok(answer(run).await)
            }
        },
    ))
}

/// Holds a handler in the middle.
#[derive(Default)]
struct Gate {
    started: Notify,
    open: Notify,
}

async fn created(run: usize) -> Response<Full<Bytes>> {
    respond(201, format!("run {run}"))
}

fn respond(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .body(Full::new(body.into()))
        .expect("a response")
}

type Protected = Idempotency<Handler>;

/// Sends on a task of its own.
fn spawn(service: &Protected, request: Request<Body>) -> JoinHandle<Answer> {
    let service = service.clone();
    tokio::spawn(async move { send(&service, request).await })
}

async fn fifty_equal_requests_at_once_through_two_layers_run_once(backend: Backend) {
    for reaction in [
        OnInFlight::Reject,
        OnInFlight::Wait(Duration::from_secs(30)),
    ] {
        let (runs, before) = (Runs::default(), backend.effects(&Runs::default()).await);
        let make = || {
            backend
                .layer()
                .with_on_in_flight(reaction)
                .with_waiter_bounds(50, 50)
        };
        let services = [(); 2].map(|()| make().layer(handler(&runs, None, created)));
        let key = format!("{reaction:?}").replace(' ', "");
        let start = Arc::new(Barrier::new(50));
        let services = services.iter().cycle().take(50);
        let sent: Vec<_> = services
            .map(|service| {
                let (service, start) = (service.clone(), Arc::clone(&start));
                let request = post(&key, "{}");
                tokio::spawn(async move {
                    start.wait().await;
                    send(&service, request).await
                })
            })
            .collect();
        for answer in sent {
            let answer = answer.await.expect("an answer");
            let refused = answer.rejection() == Some(RejectionKind::InFlight);
            assert!(refused || answer.text() == "run 1", "{answer:?}");
            assert!(
                !refused || reaction == OnInFlight::Reject,
                "a waiter was refused"
            );
        }
        assert_eq!(runs.count(), 1);
        assert_eq!(backend.effects(&runs).await - before, 1);
    }
}

async fn another_body_or_path_is_refused_during_the_run_and_after_it(backend: Backend) {
    let (runs, gate) = (Runs::default(), Arc::<Gate>::default());
    let service = backend
        .layer()
        .layer(handler(&runs, Some(Arc::clone(&gate)), created));
    let first = spawn(&service, post("k", "1"));
    gate.started.notified().await;

    let elsewhere = || {
        let mut request = post("k", "1");
        *request.uri_mut() = "/refunds".parse().expect("a path");
        request
    };
    let same = send(&service, post("k", "1")).await;
    assert_eq!(same.rejection(), Some(RejectionKind::InFlight));
    for other in [post("k", "2"), elsewhere()] {
        let other = send(&service, other).await;
        assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    }
    gate.open.notify_one();
    assert_eq!(
        first.await.expect("an answer").status(),
        StatusCode::CREATED
    );

    assert!(send(&service, post("k", "1")).await.is_replay());
    for other in [post("k", "2"), elsewhere()] {
        let other = send(&service, other).await;
        assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    }
    assert_eq!((runs.count(), backend.effects(&runs).await), (1, 1));
}

async fn keys_and_scopes_are_told_apart_byte_by_byte(backend: Backend) {
    let runs = Runs::default();
    let service = backend.layer().layer(handler(&runs, None, created));
    let long = |last: char| format!("{}{last}", "a".repeat(254));
    let keys = ["ABC", "abc", "YWJj+/==", "ywjj+/==", &long('a'), &long('b')];
    for key in keys {
        assert!(!send(&service, post(key, "{}")).await.is_replay());
    }
    // "t" and "t ", composed and decomposed, left-to-right and overridden.
    let scopes: [&[u8]; 6] = [
        b"t",
        b"t ",
        b"T",
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        "\u{202e}t".as_bytes(),
    ];
    let scoped = |scope: &[u8]| {
        let mut request = post("abc", "{}");
        let scope = HeaderValue::from_bytes(scope).expect("a header value");
        request.headers_mut().insert("x-scope", scope);
        request
    };
    for scope in scopes {
        assert!(!send(&service, scoped(scope)).await.is_replay());
    }
    for request in keys
        .map(|key| post(key, "{}"))
        .into_iter()
        .chain(scopes.map(scoped))
    {
        assert!(send(&service, request).await.is_replay());
    }
    assert_eq!(runs.count(), 12);
}

async fn every_kind_of_response_is_replayed_byte_for_byte(backend: Backend) {
    let runs = Runs::default();
    let bodies: [(u16, &'static [u8]); 8] = [
        (201, b"{\"b\":1, \"a\":1.0}"),
        (200, b""),
        (202, b"null"),
        (204, b""),
        (205, b""),
        (303, b""),
        (304, b""),
        (200, b"\x00\xff\xfe"),
    ];
    for (n, (status, body)) in bodies.into_iter().enumerate() {
        let service = backend
            .layer()
            .layer(handler(&runs, None, move |_| async move {
                let mut response = respond(status, body);
                let headers = response.headers_mut();
                headers.append("x-many", HeaderValue::from_static("one"));
                headers.append("x-many", HeaderValue::from_bytes(b"\xe4").expect("a value"));
                headers.insert("location", HeaderValue::from_static("/charges/1"));
                headers.insert("set-cookie", HeaderValue::from_static("session=1"));
                response
            }));
        let key = format!("k{n}");
        let first = send(&service, post(&key, "{}")).await;
        let mut again = send(&service, post(&key, "{}")).await;
        let (mut sent, replayed) = (first.head.headers.clone(), &mut again.head.headers);
        assert!(sent.remove("set-cookie").is_some());
        assert!(replayed.remove("idempotent-replayed").is_some());
        assert_eq!(
            (&sent, first.status(), &first.body),
            (&*replayed, again.head.status, &again.body)
        );
    }
    assert_eq!(runs.count(), 8);
}

async fn a_failed_run_is_undone_or_its_outcome_is_unknown(backend: Backend) {
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

async fn a_refusal_of_the_handler_may_be_retried_unless_it_is_final(backend: Backend) {
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

async fn a_response_over_the_limit_is_delivered_and_remembered_as_done(backend: Backend) {
    let runs = Runs::default();
    let layer = backend.layer().with_response_body_limit(1024);
    let service = layer.layer(handler(&runs, None, |_| async {
        respond(200, vec![7; 2048])
    }));
    let first = send(&service, post("k", "{}")).await;
    assert_eq!((first.status(), first.body.len()), (StatusCode::OK, 2048));
    let again = send(&service, post("k", "{}")).await;
    assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
    assert_eq!((runs.count(), backend.effects(&runs).await), (1, 1));
}

async fn a_run_goes_on_when_its_caller_has_gone(backend: Backend) {
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

async fn an_inline_run_that_is_dropped_is_undone_or_unknown(backend: Backend) {
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

async fn a_key_is_new_after_its_retention(backend: Backend) {
    let runs = Runs::default();
    let (lease, retention) = (Duration::from_millis(300), Duration::from_millis(300));
    let layer = backend.layer().with_lease(lease).with_retention(retention);
    let service = layer.layer(handler(&runs, None, created));
    let started = Instant::now();
    assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");
    until(async || send(&service, post("k", "{}")).await.text() == "run 2").await;
    assert!(started.elapsed() >= retention);
    assert_eq!((runs.count(), backend.effects(&runs).await), (2, 2));
}

async fn an_operator_finds_a_record_by_scope_and_header_and_frees_the_key(backend: Backend) {
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

macro_rules! on_every_store {
    ($($scenario:ident)*) => {
        on_every_store!(@memory $($scenario)*);
        on_every_store!(@sqlite_lease $($scenario)*);
        on_every_store!(@sqlite_transaction $($scenario)*);
    };
    (@$backend:ident $($scenario:ident)*) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    super::$scenario(super::$backend().await).await;
                }
            )*
        }
    };
}

on_every_store! {
    fifty_equal_requests_at_once_through_two_layers_run_once
    another_body_or_path_is_refused_during_the_run_and_after_it
    keys_and_scopes_are_told_apart_byte_by_byte
    every_kind_of_response_is_replayed_byte_for_byte
    a_failed_run_is_undone_or_its_outcome_is_unknown
    a_refusal_of_the_handler_may_be_retried_unless_it_is_final
    a_response_over_the_limit_is_delivered_and_remembered_as_done
    a_run_goes_on_when_its_caller_has_gone
    an_inline_run_that_is_dropped_is_undone_or_unknown
    a_key_is_new_after_its_retention
    an_operator_finds_a_record_by_scope_and_header_and_frees_the_key
}
