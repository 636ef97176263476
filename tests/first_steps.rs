mod support;

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use support::{Body, Runs, post, send};
use tower::{Layer, service_fn};
use tower_idempotency::{IdempotencyLayer, MemoryStore, RejectionKind, RequestBody, ScopeBy};

#[tokio::test]
async fn a_retry_gets_the_first_answer_and_another_body_is_refused() {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = service_fn(move |request: Request<RequestBody<Body>>| {
        let run = counted.add();
        async move {
            let body = request
                .into_body()
                .collect()
                .await
                .expect("a body")
                .to_bytes();
            Ok::<_, Infallible>(
                Response::builder()
                    .status(StatusCode::CREATED)
                    .header("location", format!("/charges/{run}"))
                    .body(Full::new(Bytes::from(format!("run {run}: {}", body.len()))))
                    .expect("a response"),
            )
        }
    });
    let service =
        IdempotencyLayer::new(MemoryStore::new(), ScopeBy::single_tenant()).layer(handler);

    let first = send(&service, post("k", "{}")).await;
    let again = send(&service, post("\"k\"", "{}")).await;
    let other = send(&service, post("k", "{ }")).await;

    assert_eq!(first.status(), StatusCode::CREATED);
    assert!(!first.is_replay());
    assert!(again.is_replay());
    assert_eq!(again.text(), "run 1: 2");
    assert_eq!(again.head.headers["location"], "/charges/1");
    assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(runs.count(), 1);
}
