//! What a refused request gets: one status, one code, and a problem document that says what to do.
#![cfg(feature = "memory")]

mod support;

use std::{convert::Infallible, future::pending, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use serde_json::Value;
use support::{
    Answer, Runs,
    body::{Script, Step},
    handler::{creating, layer, response},
    send,
    spy::{Call, Spy},
};
use tower::{Layer, service_fn};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Rejection, RejectionKind, RequestBody, ScopeBy, StoreErrorKind,
    Verdict, store::StoreKind,
};

fn request(key: Option<&str>, steps: impl IntoIterator<Item = Step>) -> Request<Script> {
    let mut request = Request::post("/charges");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Script::new(steps)).expect("a valid request")
}

/// Sends it to a handler that does what the body tells it.
async fn ask(idempotency: &IdempotencyLayer, steps: impl IntoIterator<Item = Step>) -> Answer {
    let service = idempotency.layer(service_fn(async |request: Request<RequestBody<Script>>| {
        use http_body_util::BodyExt;
        let body = request
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        assert_ne!(&*body, b"panic", "a handler that panics");
        match &*body {
            b"hang" => pending().await,
            b"tombstone" => {
                let mut response = response(StatusCode::OK, "");
                response.extensions_mut().insert(Verdict::Tombstone);
                Ok::<_, Infallible>(response)
            }
            b"500" => Ok(response(StatusCode::INTERNAL_SERVER_ERROR, "")),
            _ => Ok(response(StatusCode::OK, "")),
        }
    }));
    send(&service, request(Some("k"), steps)).await
}

/// A transaction store that fails so when the run ends.
fn failing_at_the_end(kind: StoreErrorKind) -> IdempotencyLayer {
    layer(Spy::over(MemoryStore::new(), StoreKind::Transaction).failing(Call::Complete, kind))
}

async fn refused_with(kind: RejectionKind) -> Answer {
    let plain = layer(MemoryStore::new());
    let data = Step::Data;
    match kind {
        RejectionKind::MissingKey => {
            let service = plain.require_key().layer(creating(&Runs::default()));
            send(&service, request(None, [])).await
        }
        RejectionKind::InvalidKey => {
            let service = plain.layer(creating(&Runs::default()));
            send(&service, request(Some("a,b"), [])).await
        }
        RejectionKind::IncompleteBody => ask(&plain, [Step::Fail]).await,
        RejectionKind::MissingScope => {
            let nobody = ScopeBy::parts(|_| None);
            ask(&IdempotencyLayer::new(MemoryStore::new(), nobody), []).await
        }
        RejectionKind::InFlight => {
            // The first one hangs in its handler; its caller has gone.
            let started = tokio::time::timeout(Duration::from_secs(1), ask(&plain, [data("hang")]));
            started.await.expect_err("a run that hangs");
            ask(&plain, [data("hang")]).await
        }
        RejectionKind::ResponseNotKept => {
            ask(&plain, [data("tombstone")]).await;
            ask(&plain, [data("tombstone")]).await
        }
        RejectionKind::OutcomeUnknown => {
            ask(&plain, [data("500")]).await;
            ask(&plain, [data("500")]).await
        }
        RejectionKind::BodyTooLarge => ask(&plain.with_request_body_limit(1), [data("xx")]).await,
        RejectionKind::KeyReused => {
            ask(&plain, [data("one")]).await;
            ask(&plain, [data("other")]).await
        }
        RejectionKind::HandlerFailed => ask(&plain, [data("panic")]).await,
        RejectionKind::RunLimit => ask(&plain, [data("hang")]).await,
        RejectionKind::StoreUnavailable => {
            let down = Spy::new().failing(Call::Reserve, StoreErrorKind::Unavailable);
            ask(&layer(down), []).await
        }
        RejectionKind::StoreFull => ask(&layer(MemoryStore::new().with_max_entries(0)), []).await,
        RejectionKind::NotCommitted => {
            ask(&failing_at_the_end(StoreErrorKind::RolledBack), []).await
        }
        RejectionKind::OutcomePending => {
            ask(&failing_at_the_end(StoreErrorKind::OutcomeUnknown), []).await
        }
        other => unreachable!("{other} is new: provoke it here"),
    }
}

const TABLE: [(RejectionKind, u16, &str, bool); 15] = [
    (RejectionKind::MissingKey, 400, "missing_key", false),
    (RejectionKind::InvalidKey, 400, "invalid_key", false),
    (RejectionKind::IncompleteBody, 400, "incomplete_body", false),
    (RejectionKind::MissingScope, 403, "missing_scope", false),
    (RejectionKind::InFlight, 409, "in_flight", true),
    (
        RejectionKind::ResponseNotKept,
        409,
        "response_not_kept",
        false,
    ),
    (RejectionKind::OutcomeUnknown, 409, "outcome_unknown", false),
    (RejectionKind::BodyTooLarge, 413, "body_too_large", false),
    (RejectionKind::KeyReused, 422, "key_reused", false),
    (RejectionKind::HandlerFailed, 500, "handler_failed", false),
    (RejectionKind::RunLimit, 504, "run_limit", false),
    (
        RejectionKind::StoreUnavailable,
        503,
        "store_unavailable",
        true,
    ),
    (RejectionKind::StoreFull, 503, "store_full", true),
    (RejectionKind::NotCommitted, 503, "not_committed", true),
    (RejectionKind::OutcomePending, 503, "outcome_pending", true),
];

#[tokio::test(start_paused = true)]
async fn every_refusal_is_a_problem_document_with_a_stable_code() {
    for (kind, status, code, retried) in TABLE {
        let answer = refused_with(kind).await;

        assert_eq!(answer.rejection(), Some(kind));
        assert_eq!(answer.status().as_u16(), status, "{code}");
        assert_eq!((kind.status().as_u16(), kind.code()), (status, code));
        assert_eq!(kind.to_string(), code);
        assert!(!answer.is_replay());

        let headers = &answer.head.headers;
        assert_eq!(headers[header::CONTENT_TYPE], "application/problem+json");
        let link = headers[header::LINK].to_str().expect("text");
        assert!(
            link.starts_with('<') && link.ends_with(">; rel=\"describedby\""),
            "{link}"
        );
        let after = headers
            .get(header::RETRY_AFTER)
            .map(|value| value.as_bytes());
        assert_eq!(after, retried.then_some(&b"1"[..]), "{code}");
        assert_eq!(
            kind.retry_after(),
            retried.then_some(Duration::from_secs(1))
        );

        let problem: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let members = problem.as_object().expect("an object");
        assert_eq!(members.len(), 5);
        assert_eq!(problem["type"], format!("urn:tower-idempotency:{code}"));
        assert_eq!(problem["status"], status);
        assert_eq!(problem["code"], code);
        for text in ["title", "detail"] {
            assert!(!problem[text].as_str().expect("text").is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_misused_transaction_is_a_500() {
    let answer = ask(&failing_at_the_end(StoreErrorKind::Misused), []).await;
    assert_eq!(answer.rejection(), Some(RejectionKind::HandlerFailed));
}

#[tokio::test]
async fn any_other_store_error_at_the_start_is_a_503_and_the_handler_does_not_run() {
    use StoreErrorKind::{LostClaim, Misused, Other, OutcomeUnknown, RolledBack, Unavailable};
    for kind in [
        LostClaim,
        RolledBack,
        Misused,
        OutcomeUnknown,
        Unavailable,
        Other,
    ] {
        let runs = Runs::default();
        let down = Spy::new().failing(Call::Reserve, kind);
        let service = layer(down).layer(creating(&runs));

        let answer = send(&service, request(Some("k"), [])).await;

        assert_eq!(
            answer.rejection(),
            Some(RejectionKind::StoreUnavailable),
            "{kind:?}"
        );
        assert_eq!(runs.count(), 0);
    }
}

#[tokio::test]
async fn a_closure_makes_the_refusals_and_the_kind_stays_in_the_extensions() {
    let idempotency =
        layer(MemoryStore::new())
            .require_key()
            .with_rejection(|rejection: &Rejection| {
                let text = format!("{}: {}", rejection.kind(), rejection.detail());
                let mut response = Response::new(Bytes::from(text));
                *response.status_mut() = StatusCode::IM_A_TEAPOT;
                response
            });
    let service = idempotency.layer(creating(&Runs::default()));

    let missing = send(&service, request(None, [])).await;
    let invalid = send(&service, request(Some("a,b"), [])).await;

    assert_eq!(missing.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(missing.rejection(), Some(RejectionKind::MissingKey));
    assert!(
        missing.text().starts_with("missing_key: "),
        "{}",
        missing.text()
    );
    assert!(invalid.text().contains("no comma"), "{}", invalid.text());
}

#[tokio::test]
async fn a_closure_can_add_to_the_default_response() {
    let idempotency = layer(MemoryStore::new()).with_rejection(|rejection| {
        let mut response = rejection.to_response();
        let name = http::HeaderName::from_static("x-extra");
        response
            .headers_mut()
            .insert(name, http::HeaderValue::from_static("1"));
        response
    });
    let service = idempotency.layer(creating(&Runs::default()));

    let answer = send(&service, request(Some("a,b"), [])).await;

    assert_eq!(answer.head.headers["x-extra"], "1");
    assert_eq!(
        answer.head.headers[header::CONTENT_TYPE],
        "application/problem+json"
    );
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_closure_that_panics_leaves_the_default_response() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_rejection(|_| panic!("a broken closure"));
    let service = idempotency.layer(creating(&runs));

    let answer = send(&service, request(Some("a,b"), [])).await;

    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    assert_eq!(answer.rejection(), Some(RejectionKind::InvalidKey));
    let served = send(&service, request(Some("k"), [])).await;
    assert_eq!((served.status(), runs.count()), (StatusCode::CREATED, 1));
}
