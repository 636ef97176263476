//! reqwest under the client layer, over real sockets.
#![cfg(feature = "reqwest")]

mod client_support;

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use client_support::delivery;
use http::Request;
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt};
use tower_idempotency::{
    RequestBody,
    client::{ErrorKind, IdempotentRetry, IdempotentRetryLayer, ReqwestService},
};

type Seen = Arc<Mutex<Vec<(Method, Uri, HeaderMap, Bytes)>>>;

/// Writes down what comes; `/moved` redirects, `/busy` has no time at first.
async fn answer(
    State(seen): State<Seen>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut seen = seen.lock().expect("a lock");
    seen.push((method, uri.clone(), headers, body));
    match uri.path() {
        "/busy" if seen.len() < 3 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        "/moved" => (
            StatusCode::TEMPORARY_REDIRECT,
            [(header::LOCATION, "/other")],
        )
            .into_response(),
        _ => (StatusCode::CREATED, "made").into_response(),
    }
}

/// A server's origin, and what it saw.
async fn server() -> (String, Seen) {
    let seen = Seen::default();
    let app = Router::new().fallback(answer).with_state(Arc::clone(&seen));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a socket");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async { axum::serve(listener, app).await });
    (origin, seen)
}

/// One whose builder was told to follow redirects, and to retry.
fn client() -> IdempotentRetry<ReqwestService> {
    let builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::limited(5))
        .retry(reqwest::retry::for_host("127.0.0.1").classify_fn(|attempt| attempt.retryable()));
    let service = ReqwestService::new(builder).expect("a client");
    IdempotentRetryLayer::new().layer(service)
}

fn post<B>(origin: &str, path: &str, body: B) -> Request<B> {
    let request = Request::post(format!("{origin}{path}"));
    request.body(body).expect("a valid request")
}

#[tokio::test]
async fn reqwest_sends_the_same_bytes_and_key_until_there_is_an_answer() {
    let (origin, seen) = server().await;
    let request = post(&origin, "/busy?a=b", reqwest::Body::from("100"));

    let response = client().oneshot(request).await.expect("a response");

    assert_eq!(response.status(), StatusCode::CREATED);
    let delivery = delivery(&response).clone();
    assert_eq!(delivery.attempts(), 3);
    let body = response.into_body().collect().await.expect("a whole body");
    assert_eq!(body.to_bytes(), "made");
    let seen = seen.lock().expect("a lock");
    assert_eq!(seen.len(), 3);
    for (method, uri, headers, body) in &*seen {
        assert_eq!(
            (method, uri.to_string().as_str()),
            (&Method::POST, "/busy?a=b")
        );
        assert_eq!(headers["idempotency-key"], delivery.key().as_str());
        assert_eq!(headers[header::CONTENT_LENGTH], "3");
        assert_eq!(body, "100");
    }
}

#[tokio::test]
async fn reqwest_follows_no_redirect_and_retries_nothing_whatever_it_was_told() {
    let (origin, seen) = server().await;
    let request = post(&origin, "/moved", Full::<Bytes>::from("100"));
    let response = client().oneshot(request).await.expect("a response");
    assert_eq!(response.status(), StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(delivery(&response).attempts(), 1);
    assert_eq!(seen.lock().expect("a lock").len(), 1);
}

#[tokio::test]
async fn what_reqwests_own_builder_makes_can_be_sent() {
    let (origin, seen) = server().await;
    let request = reqwest::Client::new().put(format!("{origin}/x")).body("1");
    let request = Request::try_from(request.build().expect("a request"));
    let request = request.expect("a request");
    let response = client().oneshot(request).await.expect("a response");
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(seen.lock().expect("a lock")[0].3, "1");
}

#[tokio::test]
async fn a_uri_without_an_origin_is_an_error() {
    let builder = reqwest::Client::builder().no_proxy();
    let service = ReqwestService::new(builder).expect("a client");
    let layer = IdempotentRetryLayer::new().with_attempts(1);
    let request = Request::post("/charges").body(Full::<Bytes>::from("100"));
    let error = layer
        .layer(service)
        .oneshot(request.expect("a request"))
        .await;
    let error = error.map(drop).expect_err("an error");
    assert_eq!(error.kind(), ErrorKind::Service);
    let source = std::error::Error::source(&error).expect("a source");
    let source = source
        .downcast_ref::<reqwest::Error>()
        .expect("reqwest's own");
    assert!(source.is_builder());
}

/// The adapter takes what the layer gives it.
#[test]
fn the_adapter_is_a_service_over_the_layers_body() {
    fn is_service<S: tower::Service<Request<RequestBody<Full<Bytes>>>>>() {}
    is_service::<ReqwestService>();
}
