use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;

use super::Error;
use crate::{ResponseBody, error::BoxError};

pin_project! {
    /// The future of [`IdempotentRetry`](super::IdempotentRetry).
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the attempt that is going on, and there is no other. The server may go on with it: the outcome is unknown
    /// then, and so is the key, unless the caller chose it.
    pub struct ResponseFuture<F, R> {
        #[pin]
        state: State<F, R>,
    }
}

type Outcome<R> = Result<Response<ResponseBody<R>>, Error>;

pin_project! {
    #[project = StateProjection]
    enum State<F, R> {
        Passed { #[pin] future: F },
        Engaged { future: Pin<Box<dyn Future<Output = Outcome<R>> + Send>> },
    }
}

impl<F, R> ResponseFuture<F, R> {
    pub(super) fn passed(future: F) -> Self {
        Self {
            state: State::Passed { future },
        }
    }

    pub(super) fn engaged(future: impl Future<Output = Outcome<R>> + Send + 'static) -> Self {
        Self {
            state: State::Engaged {
                future: Box::pin(future),
            },
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Outcome<R>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Passed { future } => {
                let response = ready!(future.poll(cx)).map_err(|error| Error::passed(error.into()));
                Poll::Ready(response.map(|response| response.map(ResponseBody::streamed)))
            }
            StateProjection::Engaged { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, R> fmt::Debug for ResponseFuture<F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Passed { .. } => "ResponseFuture(passed)",
            State::Engaged { .. } => "ResponseFuture(engaged)",
        })
    }
}
