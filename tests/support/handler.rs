//! Handlers that count their runs.

use std::{convert::Infallible, future::poll_fn, pin::pin, sync::Arc, task::Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt, Full};
use tokio::sync::Semaphore;
use tower::{Service, service_fn};
use tower_idempotency::{IdempotencyLayer, RequestBody, ScopeBy, store::Store};

use super::{Body, Runs};

/// A layer with nothing set.
pub fn layer(store: impl Store) -> IdempotencyLayer {
    IdempotencyLayer::new(store, ScopeBy::single_tenant())
}

/// A handler that reads the request to its end, and answers what the closure makes of the number of the run and the request.
pub fn answering<Q, R, F>(
    runs: &Runs,
    answer: F,
) -> impl Service<
    Request<RequestBody<Q>>,
    Response = Response<R>,
    Error = Infallible,
    Future: Send + 'static,
>
+ Clone
+ Send
+ Sync
+ 'static
+ use<Q, R, F>
where
    Q: http_body::Body<Data: Send, Error: std::fmt::Debug> + Send + 'static,
    F: Fn(usize, Parts, Bytes) -> Response<R> + Clone + Send + Sync + 'static,
{
    let runs = runs.clone();
    service_fn(move |request: Request<RequestBody<Q>>| {
        let (run, answer) = (runs.add(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.expect("a whole body").to_bytes();
            Ok(answer(run, parts, body))
        }
    })
}

/// A handler that answers 201 with its run and the body that it got, as in `run 1: {}`.
pub fn creating<Q>(
    runs: &Runs,
) -> impl Service<
    Request<RequestBody<Q>>,
    Response = Response<Body>,
    Error = Infallible,
    Future: Send + 'static,
>
+ Clone
+ Send
+ Sync
+ 'static
+ use<Q>
where
    Q: http_body::Body<Data: Send, Error: std::fmt::Debug> + Send + 'static,
{
    answering(runs, |run, _, body| {
        let text = format!("run {run}: {}", String::from_utf8_lossy(&body));
        response(StatusCode::CREATED, text)
    })
}

/// A response without headers.
pub fn response(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
}

/// Where a handler stands still until the test lets it go on.
#[derive(Clone, Debug)]
pub struct Gate {
    reached: Arc<Semaphore>,
    opened: Arc<Semaphore>,
}

impl Gate {
    pub fn closed() -> Self {
        Self {
            reached: Arc::new(Semaphore::new(0)),
            opened: Arc::new(Semaphore::new(0)),
        }
    }

    /// The handler's side. Those that reach it first pass first.
    pub async fn pass(&self) {
        let mut opened = pin!(self.opened.acquire());
        // In the queue before anybody hears of it.
        let now = poll_fn(|cx| Poll::Ready(opened.as_mut().poll(cx))).await;
        self.reached.add_permits(1);
        let opened = match now {
            Poll::Ready(opened) => opened,
            Poll::Pending => opened.await,
        };
        opened.expect("open").forget();
    }

    /// Waits until a handler stands at it.
    pub async fn reached(&self) {
        self.reached.acquire().await.expect("open").forget();
    }

    /// Lets one handler pass.
    pub fn open(&self) {
        self.opened.add_permits(1);
    }
}
