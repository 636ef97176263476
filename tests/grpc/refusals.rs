//! What a call that the layer refuses gets, as a tonic client sees it.

use std::time::Duration;

use http::Request;
use tonic::{Code, Status};
use tower::Layer;
use tower_idempotency::{
    GrpcStatus, IdempotencyLayer, MemoryStore, Rejection, RejectionKind, ScopeBy, StoreErrorKind,
    store::StoreKind,
};

use crate::{
    code, is_replay, is_unary, keyed, pushback,
    server::Server,
    support::{
        Runs,
        body::{Script, Step},
        handler::{answering, layer},
        probe::Probe,
        send,
        spy::{Call, Spy},
    },
};

/// The status of the last of these calls, which all have one key.
async fn refused(layer: IdempotencyLayer, asked: &[&str]) -> Status {
    let server = Server::start(layer.with_grpc_unary(is_unary), &Probe::new()).await;
    let mut client = server.client().await;
    let (last, before) = asked.split_last().expect("a call");
    for text in before {
        drop(client.unary(keyed("k", text)).await);
    }
    client.unary(keyed("k", last)).await.expect_err("refused")
}

fn assert_refused(status: &Status, kind: RejectionKind, expected: Code, back: Option<i64>) {
    assert_eq!(code(status), Some(kind.code()));
    assert_eq!(status.code(), expected, "{kind}");
    assert_eq!(pushback(status), back, "{kind}");
    assert_eq!(i32::from(kind.grpc_status().code()), i32::from(expected));
    assert!(!status.message().is_empty(), "{kind}");
}

const FINAL: Option<i64> = Some(-1);
const SOON: Option<i64> = Some(1000);

#[tokio::test]
async fn what_a_client_has_to_change_is_final() {
    let memory = || layer(MemoryStore::new());
    let no_scope = IdempotencyLayer::new(MemoryStore::new(), ScopeBy::parts(|_| None));
    let strict = tower_idempotency::KeyFormat::uuid();
    let refusals: [(IdempotencyLayer, &[&str], RejectionKind, Code); 7] = [
        (
            memory().with_key_format(strict),
            &["charge"],
            RejectionKind::InvalidKey,
            Code::InvalidArgument,
        ),
        (
            memory(),
            &["charge", "another"],
            RejectionKind::KeyReused,
            Code::InvalidArgument,
        ),
        (
            no_scope,
            &["charge"],
            RejectionKind::MissingScope,
            Code::PermissionDenied,
        ),
        (
            memory(),
            &["tombstone", "tombstone"],
            RejectionKind::ResponseNotKept,
            Code::AlreadyExists,
        ),
        (
            memory(),
            &["status 13", "status 13"],
            RejectionKind::OutcomeUnknown,
            Code::FailedPrecondition,
        ),
        (
            memory().with_request_body_limit(8),
            &["a long text"],
            RejectionKind::BodyTooLarge,
            Code::ResourceExhausted,
        ),
        (
            memory()
                .require_key()
                .with_key(tower_idempotency::KeyBy::parts(|_| None)),
            &["charge"],
            RejectionKind::MissingKey,
            Code::InvalidArgument,
        ),
    ];
    for (layer, asked, kind, expected) in refusals {
        assert_refused(&refused(layer, asked).await, kind, expected, FINAL);
    }
}

#[tokio::test]
async fn what_a_retry_gets_over_says_when_to_retry() {
    let at_first = |kind| layer(Spy::new().failing(Call::Reserve, kind));
    let at_last = |kind| {
        let records = Spy::over(MemoryStore::new(), StoreKind::Transaction);
        layer(records.failing(Call::Complete, kind))
    };
    let refusals = [
        (
            at_first(StoreErrorKind::Unavailable),
            RejectionKind::StoreUnavailable,
        ),
        (at_first(StoreErrorKind::Full), RejectionKind::StoreFull),
        (
            at_last(StoreErrorKind::Unavailable),
            RejectionKind::NotCommitted,
        ),
        (
            at_last(StoreErrorKind::OutcomeUnknown),
            RejectionKind::OutcomePending,
        ),
    ];
    for (layer, kind) in refusals {
        let status = refused(layer, &["charge"]).await;
        assert_refused(&status, kind, Code::Unavailable, SOON);
    }
}

#[tokio::test]
async fn a_duplicate_of_a_call_in_flight_is_aborted_and_later_replayed() {
    let probe = Probe::new().shut();
    let layer = layer(MemoryStore::new()).with_grpc_unary(is_unary);
    let server = Server::start(layer, &probe).await;
    let (mut client, mut other) = (server.client().await, server.client().await);
    let first = tokio::spawn(async move { client.unary(keyed("k", "charge")).await });
    probe.started(1).await;

    let refused = other.unary(keyed("k", "charge")).await;
    assert_refused(
        &refused.expect_err("refused"),
        RejectionKind::InFlight,
        Code::Aborted,
        SOON,
    );

    probe.open();
    let first = first.await.expect("a task").expect("a reply");
    let again = other.unary(keyed("k", "charge")).await.expect("a reply");
    assert_eq!(again.get_ref(), first.get_ref());
    assert_eq!(probe.effects(), 1);
}

#[tokio::test]
async fn a_duplicate_can_wait_for_the_call_in_flight() {
    let probe = Probe::new().shut();
    let layer = layer(MemoryStore::new())
        .with_grpc_unary(is_unary)
        .with_on_in_flight(tower_idempotency::OnInFlight::Wait(Duration::from_secs(60)));
    let server = Server::start(layer, &probe).await;
    let (mut client, mut other) = (server.client().await, server.client().await);
    let first = tokio::spawn(async move { client.unary(keyed("k", "charge")).await });
    probe.started(1).await;
    let second = tokio::spawn(async move { other.unary(keyed("k", "charge")).await });
    probe.open();

    let first = first.await.expect("a task").expect("a reply");
    let second = second.await.expect("a task").expect("a reply");

    assert_eq!(second.get_ref(), first.get_ref());
    assert!(is_replay(&second));
    assert_eq!(probe.effects(), 1);
}

#[tokio::test]
async fn a_handler_that_panics_or_runs_too_long_leaves_the_retry_to_the_clients_own_policy() {
    let status = refused(layer(MemoryStore::new()), &["panic"]).await;
    assert_refused(&status, RejectionKind::HandlerFailed, Code::Internal, None);

    let probe = Probe::new().shut();
    let layer = layer(MemoryStore::new())
        .with_grpc_unary(is_unary)
        .with_run_limit(Duration::from_millis(1));
    let server = Server::start(layer, &probe).await;
    let status = server.client().await.unary(keyed("k", "charge")).await;
    assert_refused(
        &status.expect_err("refused"),
        RejectionKind::RunLimit,
        Code::DeadlineExceeded,
        None,
    );
    assert_eq!(probe.effects(), 0);
}

#[tokio::test]
async fn a_call_that_broke_off_is_aborted_and_its_key_stays_free() {
    let (runs, store) = (Runs::default(), Spy::new());
    let layer = layer(store.clone()).with_grpc_unary(is_unary);
    let service = layer.layer(answering(&runs, |_, _, _| {
        http::Response::new(Script::new([]))
    }));
    let call = Request::post("/calls.v1.Calls/Unary")
        .header("content-type", "application/grpc")
        .header("idempotency-key", "k")
        .body(Script::new([Step::Data("half"), Step::Fail]));

    let answer = send(&service, call.expect("a request")).await;

    let status = Status::from_header_map(&answer.head.headers).expect("a status in the head");
    assert_refused(&status, RejectionKind::IncompleteBody, Code::Aborted, None);
    assert_eq!((runs.count(), store.calls()), (0, vec![]));
}

#[tokio::test]
async fn a_refusal_ends_with_its_head_and_no_closure_makes_http_of_it() {
    let runs = Runs::default();
    let layer = layer(MemoryStore::new())
        .require_key()
        .with_grpc_unary(is_unary)
        .with_rejection(|_| panic!("not to be asked"));
    let service = layer.layer(answering(&runs, |_, _, _| {
        http::Response::new(Script::new([]))
    }));
    let call = Request::post("/calls.v1.Calls/Unary")
        .header("content-type", "application/grpc+proto")
        .body(Script::new([]));

    let answer = send(&service, call.expect("a request")).await;

    assert_eq!(answer.status(), 200);
    assert_eq!(answer.head.headers["content-type"], "application/grpc");
    assert_eq!(answer.head.headers["grpc-status"], "3");
    assert_eq!(answer.rejection(), Some(RejectionKind::MissingKey));
    assert!(answer.body.is_empty() && answer.trailers.is_none());
    assert_eq!(answer.head.headers.get("retry-after"), None);
}

#[test]
fn a_refusal_can_be_made_without_the_layer() {
    let refusal = Rejection::new(RejectionKind::InFlight).to_grpc_response();
    let status = Status::from_header_map(refusal.headers()).expect("a status");
    assert_refused(&status, RejectionKind::InFlight, Code::Aborted, SOON);
    assert_eq!(RejectionKind::InFlight.grpc_status(), GrpcStatus::Aborted);
    let told =
        "A request with this idempotency key is still running; ask again later with the same key.";
    assert_eq!(status.message(), told);
}
