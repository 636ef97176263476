//! The request, the handler, and the least that any layer of this kind has to do around it.

use std::{
    convert::Infallible,
    fmt::Write,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, service_fn};
use tower_idempotency::{IdempotencyLayer, MemoryStore, ResponseBody, ScopeBy};

pub(crate) type Body = Full<Bytes>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The size of the handler's answer.
pub(crate) const RESPONSE: usize = 300;

/// A JSON body of this size.
pub(crate) fn json(size: usize) -> Bytes {
    let frame = r#"{"note":""}"#.len();
    Bytes::from(format!(r#"{{"note":"{}"}}"#, "x".repeat(size - frame)))
}

/// A request as a server hands it over, with a UUID for a key.
pub(crate) fn request(method: Method, key: Option<u64>, body: &Bytes) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri("/charges")
        .header(header::HOST, "api.example.com")
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(key) = key {
        let mut text = String::with_capacity(36);
        write!(text, "8e03978e-40d5-43e8-bc93-{key:012x}").expect("strings don't fail");
        request = request.header("idempotency-key", text);
    }
    request
        .body(Full::new(body.clone()))
        .expect("a valid request")
}

/// How often the handler ran.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<AtomicUsize>);

impl Runs {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Reads its body and answers with [`RESPONSE`] bytes.
pub(crate) fn handler<B>(
    runs: &Runs,
) -> impl Service<
    Request<B>,
    Response = Response<Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send + use<B>,
>
+ Clone
+ Send
+ 'static
+ use<B>
where
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let (runs, answer) = (runs.clone(), json(RESPONSE));
    service_fn(move |request: Request<B>| {
        runs.0.fetch_add(1, Ordering::Relaxed);
        let answer = answer.clone();
        async move {
            black_box(read(request.into_body()).await);
            let mut response = Response::new(Full::new(answer));
            *response.status_mut() = StatusCode::CREATED;
            response.headers_mut().insert(header::CONTENT_TYPE, JSON);
            Ok(response)
        }
    })
}

/// Reads a body to its end, and tells how many bytes that were.
pub(crate) async fn read<B>(mut body: B) -> usize
where
    B: http_body::Body<Data = Bytes, Error = Infallible> + Unpin,
{
    let mut size = 0;
    while let Some(Ok(frame)) = body.frame().await {
        size += frame.data_ref().map_or(0, Bytes::len);
    }
    size
}

/// The floor: collects the body and hashes what identifies the request, as any layer must that compares requests.
pub(crate) fn floor(
    runs: &Runs,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + use<> {
    let handler = handler(runs);
    service_fn(move |request: Request<Body>| {
        let mut handler = handler.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let mut identity = Vec::with_capacity(256);
            identity.extend_from_slice(head.method.as_str().as_bytes());
            identity.extend_from_slice(head.uri.path().as_bytes());
            identity.extend_from_slice(head.uri.query().unwrap_or_default().as_bytes());
            if let Some(content_type) = head.headers.get(header::CONTENT_TYPE) {
                identity.extend_from_slice(content_type.as_bytes());
            }
            let digest = blake3::Hasher::new()
                .update(&identity)
                .update(&body)
                .finalize();
            black_box(digest);
            handler
                .call(Request::from_parts(head, Full::new(body)))
                .await
        }
    })
}

/// Long enough that no record expires.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The handler behind the layer, over a store of its own that is never full.
pub(crate) fn guarded(
    runs: &Runs,
    detached: bool,
    retention: Duration,
) -> impl Service<
    Request<Body>,
    Response = Response<ResponseBody<Body>>,
    Error = Infallible,
    Future: Send,
>
+ Clone
+ Send
+ 'static
+ use<> {
    let store = MemoryStore::new()
        .with_max_entries(usize::MAX)
        .with_max_bytes(usize::MAX);
    IdempotencyLayer::new(store, ScopeBy::single_tenant())
        .with_detached(detached)
        .with_retention(retention)
        .with_lease(retention.min(Duration::from_secs(30)))
        .layer(handler(runs))
}

/// The handler as a server, and the client's layer in front of it.
#[cfg(feature = "client")]
pub(crate) fn client(
    runs: &Runs,
) -> impl Service<
    Request<Body>,
    Response = Response<ResponseBody<Body>>,
    Error = tower_idempotency::client::Error,
> + use<> {
    tower_idempotency::client::IdempotentRetryLayer::new().layer(handler(runs))
}
