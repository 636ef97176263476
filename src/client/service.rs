use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{Error, ErrorKind, ResponseFuture, call::call, settings::Settings};
use crate::{RequestBody, ResponseBody, error::BoxError};

/// The client that [`IdempotentRetryLayer`](super::IdempotentRetryLayer) makes of another.
///
/// It is ready when the wrapped one is. The readied service goes along with the call, and is readied anew for each retry.
#[derive(Clone)]
pub struct IdempotentRetry<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> IdempotentRetry<S> {
    pub(super) fn new(inner: S, settings: Settings) -> Self {
        Self {
            inner,
            settings: Arc::new(settings),
        }
    }

    /// The wrapped client.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The wrapped client. What it is called for directly has no key and no retries.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The wrapped client, without this layer around it.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for IdempotentRetry<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: Body + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let failed = |error: S::Error| Error::new(ErrorKind::Service, Some(error.into()));
        self.inner.poll_ready(cx).map_err(failed)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !self.settings.engages(&request) {
            return ResponseFuture::passed(self.inner.call(request.map(RequestBody::streamed)));
        }
        // The clone may not be ready: it stays here, and the one that was polled ready is called.
        let unready = self.inner.clone();
        let ready = mem::replace(&mut self.inner, unready);
        ResponseFuture::engaged(call(Arc::clone(&self.settings), ready, request))
    }
}

impl<S: fmt::Debug> fmt::Debug for IdempotentRetry<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentRetry")
            .field("inner", &self.inner)
            .field("settings", &self.settings)
            .finish()
    }
}
