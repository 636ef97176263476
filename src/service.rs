use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::{
    RequestBody, ResponseBody, ResponseFuture,
    flow::{Guard, protect},
};

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) makes of another.
///
/// It is ready when the wrapped service is. A request that doesn't engage goes straight through to it; for one that does,
/// the readied service is taken along, and let go of as soon as it is clear that the handler won't run.
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    guard: Arc<Guard>,
}

impl<S> Idempotency<S> {
    pub(crate) fn new(inner: S, guard: Guard) -> Self {
        Self {
            inner,
            guard: Arc::new(guard),
        }
    }

    /// The wrapped service.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The wrapped service. What is called there is not protected.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The wrapped service, without this one around it.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Body + Send + 'static,
    R::Data: Send,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Some(protocol) = self.guard.engages(&request) else {
            return ResponseFuture::passed(self.inner.call(request.map(RequestBody::streamed)));
        };
        // The clone may not be ready: it stays here, and the one that was polled ready is called.
        let unready = self.inner.clone();
        let ready = mem::replace(&mut self.inner, unready);
        ResponseFuture::guarded(protect(Arc::clone(&self.guard), protocol, ready, request))
    }
}

impl<S: fmt::Debug> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("inner", &self.inner)
            .field("settings", &self.guard.settings)
            .finish_non_exhaustive()
    }
}
