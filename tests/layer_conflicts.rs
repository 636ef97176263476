//! A transaction that loses against another one: the handler runs again as often as the layer was told to, and not once more.
#![cfg(feature = "memory")]
mod support;

use std::{
    collections::HashSet,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use support::{
    Body,
    body::{Script, Step},
    database::{Database, End, Transaction},
    faulty::{Call, Fault, FaultyStore, pass},
    handler::layer,
    post,
    probe::{Probe, answer, created},
    send,
    spy::{self, Spy},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{
    Drain, IdempotencyContext, OnStoreFailure, RejectionKind, RequestBody, ResponsePolicy,
    StoreErrorKind, Verdict,
};

const NOT_COMMITTED: Option<RejectionKind> = Some(RejectionKind::NotCommitted);

/// Who finds out that the transaction has lost.
#[derive(Clone, Copy, Debug)]
enum Found {
    AtCommit,
    AtRelease,
    AtAbandon,
    ByTheHandler,
}

impl Found {
    const ALL: [Self; 4] = [
        Self::AtCommit,
        Self::AtRelease,
        Self::AtAbandon,
        Self::ByTheHandler,
    ];

    /// A handler whose first transactions lose.
    fn losing(self, times: usize, database: &Database) -> Probe {
        let status = match self {
            Self::AtCommit => {
                database.lose(End::Complete, times);
                StatusCode::CREATED
            }
            Self::AtRelease => {
                database.lose(End::Release, times);
                StatusCode::NOT_FOUND
            }
            Self::AtAbandon => {
                database.lose(End::Abandon, times);
                StatusCode::BAD_GATEWAY
            }
            Self::ByTheHandler => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Probe::answering(move |run| match self {
            Self::ByTheHandler if run > times => Ok(created(run)),
            Self::ByTheHandler => Ok(conflict(status, run)),
            Self::AtCommit | Self::AtRelease | Self::AtAbandon => {
                Ok(answer(status, &format!("run {run}")))
            }
        })
    }
}

fn conflict(status: StatusCode, run: usize) -> Response<Body> {
    let mut response = answer(status, &format!("run {run}"));
    response.extensions_mut().insert(Verdict::Conflict);
    response
}

#[tokio::test(start_paused = true)]
async fn a_handler_runs_again_until_its_transaction_does_not_lose_or_the_retries_are_used_up() {
    for found in Found::ALL {
        for (retries, times) in [
            (0, 0),
            (0, 1),
            (1, 1),
            (3, 1),
            (3, 2),
            (3, 3),
            (3, 4),
            (1, 2),
        ] {
            let (database, drain) = (Database::new(), Drain::new());
            let probe = found.losing(times, &database);
            let service = layer(database.clone())
                .with_transaction_retries(u32::try_from(retries).expect("a few"))
                .with_drain(drain.clone())
                .layer(probe.service::<Body>());

            let first = send(&service, post("k", "{}")).await;

            let case = format!("{found:?}: {retries} retries, {times} losses");
            if times > retries {
                assert_eq!(first.rejection(), NOT_COMMITTED, "{case}");
                assert_eq!(first.status(), StatusCode::SERVICE_UNAVAILABLE);
                assert_eq!(first.head.headers["retry-after"], "1");
            } else {
                assert_eq!(first.rejection(), None, "{case}");
                assert_eq!(first.text(), format!("run {}", times + 1), "{case}");
            }
            let runs = 1 + times.min(retries);
            assert_eq!((probe.runs(), database.begun().len()), (runs, runs));
            let nonces: HashSet<_> = database.begun().into_iter().collect();
            assert_eq!(nonces.len(), runs, "{case}");
            assert_eq!((database.open(), drain.running()), (0, 0), "{case}");

            // What was not committed has left the key free, and what was is replayed.
            let again = send(&service, post("k", "{}")).await;
            let done = times <= retries && !matches!(found, Found::AtRelease | Found::AtAbandon);
            assert_eq!(again.is_replay(), done, "{case}");
            assert_eq!(probe.runs() == runs, done, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_answer_was_lost_may_turn_out_to_have_lost_too() {
    let database = Database::new();
    database.lose(End::Complete, 1);
    let (store, probe) = (FaultyStore::new(database.clone()), Probe::new());
    let lost = Fault::Fails(StoreErrorKind::OutcomeUnknown);
    store.then(Call::Complete, lost);
    let service = layer(store.clone())
        .with_transaction_retries(1)
        .layer(probe.service::<Body>());

    let first = send(&service, post("k", "{}")).await;

    assert_eq!((first.text(), probe.runs()), ("run 2", 2));
    assert_eq!((store.count(Call::Complete), database.commits()), (3, 1));
}

/// What a run was given.
#[derive(Debug, PartialEq)]
struct Given {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    tenant: Option<Tenant>,
    /// What the run before this one put there.
    left: Option<Left>,
    body: bytes::Bytes,
    trailers: Option<HeaderMap>,
}

#[derive(Clone, Debug, PartialEq)]
struct Tenant(u64);

#[derive(Clone, Debug, PartialEq)]
struct Left;

#[tokio::test(start_paused = true)]
async fn every_run_is_given_the_same_request_and_a_transaction_and_context_of_its_own() {
    let database = Database::new();
    database.lose(End::Complete, 2);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = service_fn(move |request: Request<RequestBody<Script>>| {
        let noted = Arc::clone(&noted);
        async move {
            let (mut parts, body) = request.into_parts();
            let body = body.collect().await.expect("a whole body");
            let trailers = body.trailers().cloned();
            let given = Given {
                method: parts.method,
                uri: parts.uri,
                headers: parts.headers,
                tenant: parts.extensions.get().cloned(),
                left: parts.extensions.insert(Left),
                body: body.to_bytes(),
                trailers,
            };
            let transaction: Option<Transaction> = parts.extensions.remove();
            let context: Option<IdempotencyContext> = parts.extensions.remove();
            let run = (given, transaction, context.expect("a context"));
            noted.lock().expect("a lock").push(run);
            Ok::<_, Infallible>(created(1))
        }
    });
    let service = layer(database.clone())
        .with_transaction_retries(2)
        .layer(handler);
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("7"));
    let steps = [Step::Data("{\"a\""), Step::Data(":1}")];
    let body = Script::new(steps.into_iter().chain([Step::Trailers(trailers.clone())]));
    let request = Request::put("/charges/7?dry=1")
        .header("idempotency-key", "k")
        .header("x-two", "1")
        .header("x-two", "2")
        .extension(Tenant(7))
        .body(body)
        .expect("a request");

    assert_eq!(send(&service, request).await.status(), StatusCode::CREATED);

    let runs = seen.lock().expect("a lock");
    let [(first, ..), (second, ..), (third, ..)] = &runs[..] else {
        panic!("{} runs", runs.len());
    };
    assert_eq!((first, second), (second, third));
    assert_eq!(
        (first.method.as_str(), first.uri.path()),
        ("PUT", "/charges/7")
    );
    assert_eq!(first.headers.get_all("x-two").iter().count(), 2);
    assert_eq!((&first.tenant, &first.left), (&Some(Tenant(7)), &None));
    assert_eq!(
        (&first.body[..], &first.trailers),
        (&b"{\"a\":1}"[..], &Some(trailers))
    );
    for ((_, transaction, context), nonce) in runs.iter().zip(database.begun()) {
        assert_eq!(*transaction, Some(Transaction(nonce)));
        assert_eq!((context.attempt(), context.is_takeover()), (1, false));
        assert_eq!(context.key().as_str(), "k");
    }
    assert!(runs.is_sorted_by(|(_, _, one), (_, _, next)| one.fence() < next.fence()));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_cut_off_is_not_run_again_and_each_run_has_a_limit_of_its_own() {
    let limit = Duration::from_secs(10);
    // Seconds that each run takes, and what its caller gets in the end.
    for (seconds, losses, expected) in [
        (vec![9, 9, 9], 2, Ok("run 3")),
        (vec![9, 11], 1, Err(RejectionKind::RunLimit)),
        (vec![0, 99], 1, Err(RejectionKind::HandlerFailed)),
        (vec![11], 0, Err(RejectionKind::RunLimit)),
        (vec![99], 0, Err(RejectionKind::HandlerFailed)),
    ] {
        let (database, probe) = (Database::new(), Probe::new());
        database.lose(End::Complete, losses);
        // It says so of the transaction of a run that was cut off, too.
        database.lose(End::Abandon, 9);
        let (runs, all) = (probe.clone(), seconds.len());
        let handler = service_fn(move |_: Request<RequestBody<Body>>| {
            let (probe, time) = (runs.clone(), seconds[runs.runs()]);
            async move {
                let answered = probe.run(None).await;
                assert_ne!(time, 99, "this run panics");
                pass(Duration::from_secs(time)).await;
                answered
            }
        });
        let service = layer(database.clone())
            .with_transaction_retries(3)
            .with_run_limit(limit)
            .layer(handler);

        let answer = send(&service, post("k", "{}")).await;

        match expected {
            Ok(text) => assert_eq!(answer.text(), text),
            Err(refusal) => assert_eq!(answer.rejection(), Some(refusal)),
        }
        assert_eq!((probe.runs(), database.open()), (all, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn the_services_own_error_reaches_the_caller_after_the_last_retry() {
    for (losses, runs, expected) in [(1, 2, "run 2"), (2, 3, "run 3"), (3, 3, "run 3")] {
        let (database, probe) = (Database::new(), Probe::answering(|_| Err("its own")));
        database.lose(End::Abandon, losses);
        let service = layer(database.clone())
            .with_transaction_retries(2)
            .layer(probe.service::<Body>());
        let error = service.oneshot(post("k", "{}")).await;
        assert_eq!(error.expect_err("an error"), "its own", "{expected}");
        assert_eq!((probe.runs(), database.open()), (runs, 0));
    }
}

#[tokio::test]
async fn on_a_lease_store_a_conflict_gives_the_key_back_and_is_a_503() {
    let by_policy = ResponsePolicy::by(|_| Verdict::Conflict);
    for policy in [ResponsePolicy::default(), by_policy] {
        let (store, probe) = (
            Spy::new(),
            Probe::answering(|run| Ok(conflict(StatusCode::CREATED, run))),
        );
        let service = layer(store.clone())
            .with_response_policy(policy)
            .layer(probe.service::<Body>());
        for run in 1..=2 {
            let refused = send(&service, post("k", "{}")).await;
            assert_eq!(refused.rejection(), NOT_COMMITTED);
            assert_eq!(refused.head.headers["retry-after"], "1");
            assert_eq!(probe.runs(), run);
        }
        let (reserve, release) = (spy::Call::Reserve, spy::Call::Release);
        assert_eq!(store.calls(), [reserve, release, reserve, release]);
    }
}

#[tokio::test]
async fn an_unprotected_run_can_lose_as_well() {
    let store = Spy::new().failing(spy::Call::Reserve, StoreErrorKind::Unavailable);
    let probe = Probe::answering(|run| Ok(conflict(StatusCode::CREATED, run)));
    let drain = Drain::new();
    let service = layer(store.clone())
        .with_drain(drain.clone())
        .with_on_store_failure(OnStoreFailure::RunUnprotected)
        .layer(probe.service::<Body>());
    let refused = send(&service, post("k", "{}")).await;
    assert_eq!(refused.rejection(), NOT_COMMITTED);
    assert_eq!(probe.runs(), 1);
    // The key may have been claimed after all, and is given back.
    let drained = drain.wait(Duration::from_secs(60)).await;
    assert_eq!(drained, 0);
    let (reserve, release) = (spy::Call::Reserve, spy::Call::Release);
    assert_eq!(store.calls(), [reserve, release]);
}
