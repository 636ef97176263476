//! What the tests of the client side share: a wire that does what a test tells it, and remembers what was sent.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses some of it"
)]
#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy takes the modules of a test for production code"
)]

use std::{
    collections::VecDeque,
    fmt,
    future::pending,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, timeout};
use tower::{Layer, Service, ServiceExt};
use tower_idempotency::{
    ResponseBody,
    client::{Delivery, Error, IdempotentRetryLayer},
};

/// The body of most requests and responses in these tests.
pub type Body = Full<Bytes>;

/// What becomes of an attempt.
#[derive(Debug)]
pub enum Step<R = Body> {
    Answer(Response<R>),
    /// A lost connection.
    Fail,
    /// Nothing, ever.
    Hang,
    /// The answer comes after this time.
    Late(Duration, Response<R>),
}

/// One attempt, as it arrived.
#[derive(Debug)]
pub struct Seen {
    pub head: Parts,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
    pub at: Instant,
}

impl Seen {
    pub fn key(&self) -> &str {
        let mut lines = self.head.headers.get_all("idempotency-key").iter();
        let key = lines.next().expect("a key").to_str().expect("a text");
        assert!(lines.next().is_none(), "two keys");
        key
    }
}

/// The error of a lost connection.
#[derive(Debug, PartialEq)]
pub struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection was lost")
    }
}

impl std::error::Error for Lost {}

/// A client's connections: attempts meet one step after the other, and then 201. It panics if it is called unready, and a clone is.
#[derive(Debug)]
pub struct Wire<R = Body> {
    shared: Arc<Mutex<Shared<R>>>,
    rest: fn() -> Response<R>,
    ready: bool,
}

#[derive(Debug)]
struct Shared<R> {
    steps: VecDeque<Step<R>>,
    seen: Vec<Seen>,
}

impl<R> Clone for Wire<R> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            rest: self.rest,
            ready: false,
        }
    }
}

impl Wire {
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self::with_rest(steps, || status(201))
    }
}

impl<R> Wire<R> {
    /// One whose last answers are these.
    pub fn with_rest(steps: impl IntoIterator<Item = Step<R>>, rest: fn() -> Response<R>) -> Self {
        let shared = Shared {
            steps: steps.into_iter().collect(),
            seen: Vec::new(),
        };
        Self {
            shared: Arc::new(Mutex::new(shared)),
            rest,
            ready: false,
        }
    }

    /// Takes out what has arrived so far.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.shared.lock().expect("a lock").seen)
    }

    /// How many attempts have arrived.
    pub fn count(&self) -> usize {
        self.shared.lock().expect("a lock").seen.len()
    }
}

impl<Q, R> Service<Request<Q>> for Wire<R>
where
    Q: http_body::Body<Data: Send, Error: fmt::Debug> + Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = Lost;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, Lost>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called unready");
        let (shared, rest) = (Arc::clone(&self.shared), self.rest);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let at = Instant::now();
            let body = body.collect().await.expect("a whole body");
            let trailers = body.trailers().cloned();
            let step = {
                let mut shared = shared.lock().expect("a lock");
                shared.seen.push(Seen {
                    head,
                    body: body.to_bytes(),
                    trailers,
                    at,
                });
                shared.steps.pop_front()
            };
            match step {
                Some(Step::Answer(response)) => Ok(response),
                Some(Step::Fail) => Err(Lost),
                Some(Step::Hang) => pending().await,
                Some(Step::Late(time, response)) => {
                    drop(timeout(time, pending::<()>()).await);
                    Ok(response)
                }
                None => Ok(rest()),
            }
        })
    }
}

/// A response without headers.
pub fn status(status: u16) -> Response<Body> {
    let mut response = Response::new(Body::from("done"));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

/// The same, as a step.
pub fn answer(code: u16) -> Step {
    Step::Answer(status(code))
}

/// A response with headers.
pub fn with_headers(code: u16, headers: &[(&'static str, &str)]) -> Step {
    let mut response = status(code);
    for (name, value) in headers {
        let value = value.parse().expect("a header value");
        response.headers_mut().append(*name, value);
    }
    Step::Answer(response)
}

/// One of our server's refusals.
pub fn problem(code: u16, problem: &str) -> Step {
    let mut response = Response::new(Body::from(problem_body(problem)));
    *response.status_mut() = StatusCode::from_u16(code).expect("a status");
    let problem = "application/problem+json".parse().expect("a header value");
    response.headers_mut().insert("content-type", problem);
    Step::Answer(response)
}

pub fn problem_body(problem: &str) -> String {
    format!(r#"{{"title":"No","code":"{problem}","detail":"told so"}}"#)
}

/// A request without a key.
pub fn post(body: &'static str) -> Request<Body> {
    Request::post("http://payments.test/charges")
        .header("content-type", "application/json")
        .body(Body::from(body))
        .expect("a valid request")
}

/// Makes one call.
pub async fn send<B, R>(
    layer: &IdempotentRetryLayer,
    wire: &Wire<R>,
    request: Request<B>,
) -> Result<Response<ResponseBody<R>>, Error>
where
    B: http_body::Body<Data: Send, Error: std::error::Error + Send + Sync + 'static>
        + Send
        + 'static,
    R: http_body::Body<Data: Send, Error: std::error::Error + Send + Sync + 'static>
        + Send
        + 'static,
{
    layer.layer(wire.clone()).oneshot(request).await
}

/// What a response to a keyed call carries.
pub fn delivery<B>(response: &Response<B>) -> &Delivery {
    response.extensions().get().expect("a keyed call")
}

/// The text of a response's body.
pub async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body<Data = Bytes, Error: fmt::Debug>,
{
    let body = response.into_body().collect().await.expect("a whole body");
    String::from_utf8(body.to_bytes().to_vec()).expect("a text")
}
