//! What the tests of the layer share: requests, responses, and a handler that counts its runs.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses some of it"
)]
#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "clippy takes the modules of a test for production code"
)]

pub mod body;
#[cfg(feature = "tracing")]
pub mod capture;
pub mod database;
pub mod faulty;
pub mod handler;
pub mod probe;
pub mod server;
pub mod spy;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Service, ServiceExt};
use tower_idempotency::RejectionKind;

/// The body of all requests in these tests.
pub type Body = Full<Bytes>;

/// A request with a key.
pub fn post(key: &str, body: &str) -> Request<Body> {
    Request::post("/charges")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Body::from(body.to_owned()))
        .expect("a valid request")
}

/// How often a handler ran.
#[derive(Clone, Debug, Default)]
pub struct Runs(Arc<AtomicUsize>);

impl Runs {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// A response whose body was read to its end.
#[derive(Debug)]
pub struct Answer {
    pub head: http::response::Parts,
    pub body: Bytes,
    pub trailers: Option<http::HeaderMap>,
}

impl Answer {
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text body")
    }

    pub fn is_replay(&self) -> bool {
        self.head
            .headers
            .get("idempotent-replayed")
            .is_some_and(|value| value == "true")
    }

    pub fn rejection(&self) -> Option<RejectionKind> {
        self.head.extensions.get().copied()
    }
}

/// Reads a response to its end.
pub async fn read<B>(response: Response<B>) -> Answer
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body");
    let trailers = body.trailers().cloned();
    Answer {
        head,
        body: body.to_bytes(),
        trailers,
    }
}

/// Sends one request through a clone of the service.
pub async fn send<S, B, R>(service: &S, request: Request<B>) -> Answer
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Error: std::fmt::Debug,
    R: http_body::Body<Data = Bytes>,
    R::Error: std::fmt::Debug,
{
    read(service.clone().oneshot(request).await.expect("a response")).await
}
