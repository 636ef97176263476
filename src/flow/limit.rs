use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use tokio::time::{error::Elapsed, timeout};

/// Waits for a future, at most for `limit` from its first poll. What is ready then needs no timer, and no look at the clock.
pub(super) async fn limited<F: Future>(
    limit: Duration,
    mut future: Pin<&mut F>,
) -> Result<F::Output, Elapsed> {
    if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        return Ok(output);
    }
    timeout(limit, future).await
}
