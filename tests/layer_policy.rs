//! What becomes of a response: saved, discarded, unknown or a tombstone, by status, policy and the handler's own verdict.
#![cfg(feature = "memory")]

mod support;

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Request, Response, StatusCode};
use support::{
    Answer, Body, Runs,
    handler::{answering, layer, response},
    post, send,
    spy::{Call, Spy},
};
use tower::{Layer, util::BoxCloneSyncService};
use tower_idempotency::{
    GrpcStatus, Idempotency, IdempotencyLayer, MemoryStore, RejectionKind, RequestBody,
    ResponsePolicy, Verdict, store::Takeover,
};

type Handler = BoxCloneSyncService<Request<RequestBody<Body>>, Response<Body>, Infallible>;

/// A service that gives these responses, one in each run.
fn giving(
    idempotency: &IdempotencyLayer,
    runs: &Runs,
    responses: impl IntoIterator<Item = Response<Body>>,
) -> Idempotency<Handler> {
    let responses: Vec<_> = responses.into_iter().collect();
    let responses = Arc::new(Mutex::new(responses.into_iter()));
    let handler = answering(runs, move |_, _, _| {
        let next = responses.lock().expect("a lock").next();
        next.expect("a response for this run")
    });
    idempotency.layer(BoxCloneSyncService::new(handler))
}

/// A response on which the handler has decided.
fn decided(status: StatusCode, verdict: Verdict) -> Response<Body> {
    let mut response = response(status, "secret");
    response.extensions_mut().insert(verdict);
    response
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).expect("a status")
}

#[tokio::test]
async fn the_status_decides_how_a_claim_is_settled() {
    let saved =
        [200, 201, 202, 204, 205, 299, 301, 303, 304, 399].map(|code| (code, Call::Complete));
    let released =
        [400, 401, 403, 404, 409, 413, 422, 425, 429, 451, 499].map(|code| (code, Call::Release));
    let abandoned = [408, 500, 502, 503, 504, 599, 600, 999].map(|code| (code, Call::Abandon));
    for (code, settled) in saved.into_iter().chain(released).chain(abandoned) {
        let (runs, store) = (Runs::default(), Spy::new());
        let answers = [
            response(status(code), ""),
            response(StatusCode::CREATED, ""),
        ];
        let service = giving(&layer(store.clone()), &runs, answers);

        let first = send(&service, post("k", "{}")).await;
        assert_eq!(first.status(), code);
        assert_eq!(store.calls(), [Call::Reserve, settled], "{code}");

        let again = send(&service, post("k", "{}")).await;
        match settled {
            Call::Complete => assert!(again.is_replay() && again.status() == code),
            Call::Release => assert_eq!(again.status(), StatusCode::CREATED),
            Call::Abandon | Call::Reserve | Call::Renew | Call::Inspect => {
                assert_eq!(again.rejection(), Some(RejectionKind::OutcomeUnknown))
            }
        }
        let expected = if settled == Call::Release { 2 } else { 1 };
        assert_eq!(runs.count(), expected, "{code}");
    }
}

#[tokio::test]
async fn a_transient_503_is_not_pinned_to_the_key_where_a_takeover_is_allowed() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_takeover(Takeover::RunAgain);
    let answers = [503, 503, 201].map(|code| response(status(code), ""));
    let service = giving(&idempotency, &runs, answers);

    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(send(&service, post("k", "{}")).await.status().as_u16());
    }

    assert_eq!(statuses, [503, 503, 201, 201]);
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn a_grpc_status_that_a_handler_passes_on_decides_nothing_over_http() {
    let (runs, store) = (Runs::default(), Spy::new());
    let mut answer = response(StatusCode::CREATED, "done");
    answer.extensions_mut().insert(GrpcStatus::Aborted);
    let service = giving(&layer(store.clone()), &runs, [answer]);

    send(&service, post("k", "{}")).await;
    assert_eq!(store.calls(), [Call::Reserve, Call::Complete]);
}

#[tokio::test]
async fn a_handlers_verdict_overrules_every_policy() {
    let policies = [
        ResponsePolicy::default(),
        ResponsePolicy::save_all(),
        ResponsePolicy::by(|_| Verdict::Discard),
        ResponsePolicy::by(|_| panic!("not to be asked")),
    ];
    let verdicts = [
        (Verdict::Save, Call::Complete),
        (Verdict::Discard, Call::Release),
        (Verdict::Unknown, Call::Abandon),
        (Verdict::Tombstone, Call::Complete),
    ];
    for policy in policies {
        for (verdict, settled) in verdicts {
            for code in [201, 409, 500] {
                let (runs, store) = (Runs::default(), Spy::new());
                let idempotency = layer(store.clone()).with_response_policy(policy.clone());
                let service = giving(&idempotency, &runs, [decided(status(code), verdict)]);

                let answer = send(&service, post("k", "{}")).await;

                assert_eq!((answer.status().as_u16(), answer.text()), (code, "secret"));
                let shown = format!("{policy:?} {verdict:?} {code}");
                assert_eq!(store.calls(), [Call::Reserve, settled], "{shown}");
            }
        }
    }
}

#[tokio::test]
async fn a_final_conflict_can_be_saved_though_other_conflicts_are_not() {
    // The slot was taken: that answer is final, whatever becomes free later.
    let runs = Runs::default();
    let answers = [decided(StatusCode::CONFLICT, Verdict::Save)];
    let service = giving(&layer(MemoryStore::new()), &runs, answers);

    send(&service, post("k", "{}")).await;
    let again = send(&service, post("k", "{}")).await;

    assert!(again.is_replay());
    assert_eq!(again.status(), StatusCode::CONFLICT);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_tombstone_keeps_the_key_and_not_the_secret() {
    use tower_idempotency::store::{RecordState, Store};

    let (runs, store) = (Runs::default(), Spy::new());
    let answers = [decided(StatusCode::CREATED, Verdict::Tombstone)];
    let service = giving(&layer(store.clone()), &runs, answers);

    let first = send(&service, post("k", "{}")).await;
    let again = send(&service, post("k", "{}")).await;
    let other = send(&service, post("k", "[]")).await;

    assert_eq!(first.text(), "secret");
    assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
    assert_eq!(again.status(), StatusCode::CONFLICT);
    assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    let record = store.inspect(&store.last_key()).await.expect("a store");
    let state = record.expect("a record").state;
    assert!(matches!(state, RecordState::Completed(saved) if saved.is_tombstone()));
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn save_all_replays_errors_too() {
    for code in [400, 404, 408, 429, 500, 503] {
        let runs = Runs::default();
        let policy = ResponsePolicy::save_all();
        let idempotency = layer(MemoryStore::new()).with_response_policy(policy);
        let service = giving(&idempotency, &runs, [response(status(code), "no")]);

        send(&service, post("k", "{}")).await;
        let again = send(&service, post("k", "{}")).await;

        assert!(again.is_replay());
        assert_eq!((again.status().as_u16(), again.text()), (code, "no"));
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn a_closure_decides_by_the_responses_head() {
    let by_header = ResponsePolicy::by(|head| {
        if head.headers.contains_key("x-final") {
            Verdict::Save
        } else {
            Verdict::Discard
        }
    });
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_response_policy(by_header);
    let mut last = response(StatusCode::BAD_GATEWAY, "final");
    last.headers_mut()
        .insert("x-final", http::HeaderValue::from_static("1"));
    let service = giving(&idempotency, &runs, [response(StatusCode::OK, ""), last]);

    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer: Answer = send(&service, post("k", "{}")).await;
        answers.push((answer.status().as_u16(), answer.is_replay()));
    }

    assert_eq!(answers, [(200, false), (502, false), (502, true)]);
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn a_policy_that_panics_is_a_500_of_unknown_outcome() {
    let (runs, store) = (Runs::default(), Spy::new());
    let policy = ResponsePolicy::by(|_| panic!("a broken policy"));
    let idempotency = layer(store.clone()).with_response_policy(policy);
    let service = giving(&idempotency, &runs, [response(StatusCode::CREATED, "done")]);

    let failed = send(&service, post("k", "{}")).await;
    let again = send(&service, post("k", "{}")).await;

    assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
    assert_eq!(store.calls(), [Call::Reserve, Call::Abandon, Call::Reserve]);
    assert_eq!(again.rejection(), Some(RejectionKind::OutcomeUnknown));
    assert_eq!(runs.count(), 1);
}
