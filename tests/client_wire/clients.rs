//! The clients that the layer is put on, with it and without.

use std::{convert::Infallible, fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, util::BoxCloneService};
use tower_idempotency::{
    ResponseBody,
    client::{Delivery, Error, IdempotentRetryLayer, ReqwestService},
};
use uuid::Uuid;

pub type Body = BoxBody<Bytes, Infallible>;
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// A client behind the layer.
pub type Client = BoxCloneService<Request<Body>, Reply, Error>;

/// How long an attempt may take where one is to run into it.
pub const HASTY: Duration = Duration::from_secs(2);

/// A client, and what it speaks.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// hyper-util's.
    Hyper,
    HyperHttp2,
    /// Through the adapter.
    Reqwest,
    ReqwestHttp2,
}

pub const KINDS: [Kind; 2] = [Kind::Hyper, Kind::Reqwest];
/// Of which the server is known to speak it.
pub const HTTP2: [Kind; 2] = [Kind::HyperHttp2, Kind::ReqwestHttp2];

/// An answer, as a whole.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub version: Version,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub delivery: Delivery,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Kind {
    /// Behind the layer.
    pub fn with(self, layer: &IdempotentRetryLayer) -> Client {
        match self {
            Self::Hyper => replying(layer.layer(hyper(false))),
            Self::HyperHttp2 => replying(layer.layer(hyper(true))),
            Self::Reqwest => replying(layer.layer(reqwest(false))),
            Self::ReqwestHttp2 => replying(layer.layer(reqwest(true))),
        }
    }

    /// Sends a request until it is answered with success, each time with a key of its own: what teams start with.
    pub async fn naively(self, request: impl Fn() -> Request<Body>) -> Bytes {
        for _ in 0..5 {
            let request = keyed(request());
            let attempt = async {
                match self {
                    Self::Hyper => whole(hyper(false).oneshot(request).await?).await,
                    Self::HyperHttp2 => whole(hyper(true).oneshot(request).await?).await,
                    Self::Reqwest => whole(reqwest(false).oneshot(request).await?).await,
                    Self::ReqwestHttp2 => whole(reqwest(true).oneshot(request).await?).await,
                }
            };
            if let Ok(Ok((StatusCode::OK, body))) = timeout(HASTY, attempt).await {
                return body;
            }
        }
        panic!("no success");
    }
}

/// The retry's layer, with pauses that nobody has to wait for.
pub fn retry() -> IdempotentRetryLayer {
    let (first, longest) = (Duration::from_millis(1), Duration::from_millis(20));
    IdempotentRetryLayer::new().with_backoff(first, longest)
}

pub fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

pub fn hyper<B>(http2: bool) -> legacy::Client<HttpConnector, B>
where
    B: http_body::Body + Send,
    B::Data: Send,
{
    legacy::Client::builder(TokioExecutor::new())
        .http2_only(http2)
        .build_http()
}

fn reqwest(http2: bool) -> ReqwestService {
    // Nothing that names a proxy of this machine.
    let builder = reqwest::Client::builder().no_proxy();
    let builder = match http2 {
        true => builder.http2_prior_knowledge(),
        false => builder,
    };
    ReqwestService::new(builder).expect("a client")
}

fn keyed(mut request: Request<Body>) -> Request<Body> {
    let key = Uuid::new_v4().to_string().parse().expect("a value");
    request.headers_mut().insert("idempotency-key", key);
    request
}

fn replying<S, R>(service: S) -> Client
where
    S: Service<Request<Body>, Response = Response<ResponseBody<R>>, Error = Error>,
    S: Clone + Send + 'static,
    S::Future: Send,
    R: http_body::Body + Send + 'static,
    R::Data: Send,
    R::Error: fmt::Debug + Into<BoxError>,
{
    BoxCloneService::new(
        service.and_then(async |response: Response<ResponseBody<R>>| {
            let (head, body) = response.into_parts();
            let body = body.collect().await.expect("an answer that is whole");
            Ok(Reply {
                status: head.status,
                version: head.version,
                headers: head.headers,
                body: body.to_bytes(),
                delivery: head.extensions.get().cloned().expect("a call with a key"),
            })
        }),
    )
}

async fn whole<R>(response: Response<R>) -> Result<(StatusCode, Bytes), BoxError>
where
    R: http_body::Body,
    R::Error: Into<BoxError>,
{
    let status = response.status();
    let body = response.into_body().collect().await.map_err(Into::into)?;
    Ok((status, body.to_bytes()))
}
