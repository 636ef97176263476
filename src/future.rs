use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;

use crate::ResponseBody;

pin_project! {
    /// The future of [`Idempotency`](crate::Idempotency).
    ///
    /// Dropping it ends the wait of this caller, not the run (see [`with_detached`](crate::IdempotencyLayer::with_detached)).
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

type Outcome<R, E> = Result<Response<ResponseBody<R>>, E>;

pin_project! {
    #[project = StateProjection]
    enum State<F, R, E> {
        Passed { #[pin] future: F },
        Guarded { future: Pin<Box<dyn Future<Output = Outcome<R, E>> + Send>> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    pub(crate) fn passed(future: F) -> Self {
        Self {
            state: State::Passed { future },
        }
    }

    pub(crate) fn guarded(future: impl Future<Output = Outcome<R, E>> + Send + 'static) -> Self {
        Self {
            state: State::Guarded {
                future: Box::pin(future),
            },
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Outcome<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Passed { future } => {
                let response = ready!(future.poll(cx))?;
                Poll::Ready(Ok(response.map(ResponseBody::streamed)))
            }
            StateProjection::Guarded { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Passed { .. } => "ResponseFuture(passed)",
            State::Guarded { .. } => "ResponseFuture(guarded)",
        })
    }
}
