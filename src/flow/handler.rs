use std::{
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tower_service::Service;

pin_project! {
    /// The handler of one run: the service with its request until this is polled, then the future of its call.
    ///
    /// Both in one place, and boxed once: handed from one async fn to the next, the request would have a place in each of them.
    #[project = HandlerProjection]
    #[project_replace = HandlerReplaced]
    pub(super) enum Handler<S: Service<Q>, Q> {
        Ready { service: S, request: Q },
        Running { #[pin] future: S::Future },
        /// The call itself has panicked.
        Failed,
    }
}

impl<S: Service<Q>, Q> Handler<S, Q> {
    /// Of a service that is ready.
    pub(super) fn new(service: S, request: Q) -> Pin<Box<Self>> {
        Box::pin(Self::Ready { service, request })
    }
}

impl<S: Service<Q>, Q> Future for Handler<S, Q> {
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Self::Ready { .. } = *self
            && let HandlerReplaced::Ready {
                mut service,
                request,
            } = self.as_mut().project_replace(Self::Failed)
        {
            let future = service.call(request);
            self.set(Self::Running { future });
        }
        match self.project() {
            HandlerProjection::Running { future } => future.poll(cx),
            HandlerProjection::Ready { .. } | HandlerProjection::Failed => Poll::Pending,
        }
    }
}
