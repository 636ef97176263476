use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

/// Something of the user's panicked. The panic hook has reported it.
#[derive(Debug)]
pub(crate) struct Panicked;

/// Runs a future to its end or to its panic.
pub(crate) fn catch<F: Future>(future: F) -> Catch<F> {
    Catch { future }
}

pin_project! {
    /// A struct, because an async fn would hold the future twice: as its argument, and where it is pinned.
    pub(crate) struct Catch<F> {
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Catch<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.project().future;
        // Asserting unwind safety is right here: what a panic may have left half done is dropped with the future,
        // and never looked at.
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(_payload) => Poll::Ready(Err(Panicked)),
        }
    }
}
