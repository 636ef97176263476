use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use reqwest::{ClientBuilder, redirect, retry};
use tower_service::Service;

use crate::error::BoxError;

/// reqwest as a `Service<http::Request<_>>`, to be wrapped by [`IdempotentRetryLayer`](super::IdempotentRetryLayer).
///
/// It is made of a [`ClientBuilder`], because two things are not the client's to decide: it follows no redirect, which would carry
/// the key to another origin, or make a GET of the request; and it doesn't retry on its own, beside the layer's count.
/// TLS, proxies, default headers and time limits are the builder's. (Don't put the key into the default headers: all calls would
/// have the same.) A clone shares the connections.
///
/// The request's URI has to be absolute. Its body has to be `Sync`, as reqwest's own and `Full` are.
///
/// ```no_run
/// use http::Request;
/// use tower::{Layer, ServiceExt};
/// use tower_idempotency::client::{IdempotentRetryLayer, ReqwestService};
///
/// # async fn charge() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let reqwest = ReqwestService::new(reqwest::Client::builder())?;
/// let client = IdempotentRetryLayer::new().layer(reqwest);
///
/// let request = Request::post("http://payments.test/charges").body(reqwest::Body::from("100"))?;
/// let response = client.clone().oneshot(request).await?;
/// println!("{}", response.status());
/// # Ok(())
/// # }
/// ```
///
/// What reqwest's request builder makes can be sent as well: `http::Request::try_from(builder.build()?)`.
#[derive(Clone, Debug)]
pub struct ReqwestService(reqwest::Client);

impl ReqwestService {
    /// Builds the client, without redirects and without its own retries, whatever the builder was told about them.
    ///
    /// # Errors
    ///
    /// Those of [`ClientBuilder::build`].
    pub fn new(builder: ClientBuilder) -> Result<Self, reqwest::Error> {
        let builder = builder.redirect(redirect::Policy::none());
        builder.retry(retry::never()).build().map(Self)
    }
}

impl<B> Service<Request<B>> for ReqwestService
where
    B: Body + Send + Sync + 'static,
    B::Data: Into<Bytes>,
    B::Error: Into<BoxError>,
{
    type Response = Response<reqwest::Body>;
    type Error = reqwest::Error;
    type Future = ReqwestFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), reqwest::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ReqwestFuture {
        let request = reqwest::Request::try_from(request.map(reqwest::Body::wrap));
        ReqwestFuture {
            state: match request {
                Ok(request) => State::Sent {
                    future: self.0.call(request),
                },
                Err(error) => State::Refused { error: Some(error) },
            },
        }
    }
}

pin_project! {
    /// The future of [`ReqwestService`].
    pub struct ReqwestFuture {
        #[pin]
        state: State,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State {
        Sent { #[pin] future: <reqwest::Client as Service<reqwest::Request>>::Future },
        Refused { error: Option<reqwest::Error> },
    }
}

impl Future for ReqwestFuture {
    type Output = Result<Response<reqwest::Body>, reqwest::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Sent { future } => future.poll(cx).map_ok(Response::from),
            StateProjection::Refused { error } => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}

impl fmt::Debug for ReqwestFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Sent { .. } => "ReqwestFuture(sent)",
            State::Refused { .. } => "ReqwestFuture(refused)",
        })
    }
}
