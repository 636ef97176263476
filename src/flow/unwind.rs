use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
};

/// Something of the user's panicked. The panic hook has reported it.
#[derive(Debug)]
pub(super) struct Panicked;

/// Runs a future to its end or to its panic.
///
/// Asserting unwind safety is right here: what a panic may have left half done is dropped with the future, and never looked at.
pub(super) async fn catch<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(
        |cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(_payload) => std::task::Poll::Ready(Err(Panicked)),
        },
    )
    .await
}
