use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::oneshot;

use super::{Guard, span::in_current_span};

/// A run as a future of its own, for the closure of [`with_spawn`](crate::IdempotencyLayer::with_spawn).
///
/// It must be polled to its end: dropping it abandons the run.
pub struct DetachedRun(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Future for DetachedRun {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for DetachedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DetachedRun(..)")
    }
}

/// Runs the future on a task that ends only with it, unless the layer runs inline.
///
/// None if the task ended without a result: it panicked, or the runtime is shutting down.
pub(super) async fn detached<T: Send + 'static>(
    guard: &Guard,
    run: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    if !guard.settings.detached {
        return Some(run.await);
    }
    let Some(spawn) = &guard.settings.spawn else {
        return tokio::spawn(in_current_span(run)).await.ok();
    };
    let (sender, receiver) = oneshot::channel();
    let task = in_current_span(async move {
        // A caller that has gone doesn't miss the answer: the record has it.
        drop(sender.send(run.await));
    });
    spawn(DetachedRun(Box::pin(task)));
    receiver.await.ok()
}
