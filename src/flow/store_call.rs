use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{runtime::Handle, time::timeout};

use super::{
    Guard, Shared,
    limit::limited,
    unwind::{Catch, Panicked, catch},
};
use crate::{
    RecordKey, StoreError, StoreErrorKind,
    config::Settings,
    event,
    metric::{self, Gauged},
    store::Record,
};

/// Waits for a call of the store, at most for `limit`; then the error has the kind `elapsed`.
///
/// The limit ends the wait, and so does a caller that goes away, but never the call: a `BEGIN` or `COMMIT` that is dropped
/// half-way leaves a pooled connection inside a transaction, or commits unseen. The call then goes on by itself,
/// and what it finds is given to `late`. `name` is for the metrics. A call that panics has failed, and is no reason to give up a run.
pub(super) fn within<T: Send + 'static>(
    guard: &Arc<Guard>,
    name: &'static str,
    limit: Duration,
    elapsed: StoreErrorKind,
    call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    late: impl FnOnce(&Arc<Guard>, Result<T, StoreError>) + Send + Unpin + 'static,
) -> impl Future<Output = Result<T, StoreError>> + Send {
    // Boxed out here, or every future that waits for this one would have room for the call.
    let call: Call<T> = Box::pin(call);
    let mut call = StoreCall {
        pending: Some((catch(call), late)),
        limit: Some(limit),
        elapsed,
        guard,
        runtime: None,
    };
    async move {
        let started = metric::now();
        let waited = limited(limit, Pin::new(&mut call)).await;
        metric::store_call(name, started, &waited);
        match waited {
            Ok(result) => result,
            Err(cause) => {
                call.runs_late();
                Err(StoreError::new(elapsed, cause))
            }
        }
    }
}

/// What is recorded under a key now.
pub(super) async fn inspect(
    guard: &Arc<Guard>,
    key: RecordKey,
) -> Result<Option<Record>, StoreError> {
    let asking = Arc::clone(guard);
    let inspection = async move { asking.store.inspect(&key).await };
    let elapsed = StoreErrorKind::Unavailable;
    let record = within(
        guard,
        "inspect",
        guard.call_limit,
        elapsed,
        inspection,
        ignore,
    )
    .await;
    if let Err(error) = &record {
        event::inspect_failed(&key, error);
    }
    record
}

/// For calls whose late result changes nothing.
pub(super) fn ignore<T>(_guard: &Arc<Guard>, _late: Result<T, StoreError>) {}

type Call<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// A store that panics was reached. What it did before is known no better than after a call that ran into its limit.
pub(super) fn panicked(elapsed: StoreErrorKind) -> StoreError {
    let kind = if elapsed == StoreErrorKind::Unavailable {
        StoreErrorKind::Other
    } else {
        elapsed
    };
    StoreError::new(kind, "the store panicked")
}

struct StoreCall<'a, T: Send + 'static, L>
where
    L: FnOnce(&Arc<Guard>, Result<T, StoreError>) + Send + 'static,
{
    pending: Option<(Catch<Call<T>>, L)>,
    /// None once it is over.
    limit: Option<Duration>,
    /// What it means if there is no answer.
    elapsed: StoreErrorKind,
    guard: &'a Arc<Guard>,
    /// Of a call that waits. Kept, because a future may be dropped outside of its runtime.
    runtime: Option<Handle>,
}

impl<T: Send, L> StoreCall<'_, T, L>
where
    L: FnOnce(&Arc<Guard>, Result<T, StoreError>) + Send + 'static,
{
    fn runs_late(&mut self) {
        self.limit = None;
    }
}

impl<T: Send, L> Future for StoreCall<'_, T, L>
where
    L: FnOnce(&Arc<Guard>, Result<T, StoreError>) + Send + Unpin,
{
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((call, _late)) = &mut self.pending else {
            return Poll::Pending;
        };
        let Poll::Ready(answer) = Pin::new(call).poll(cx) else {
            self.runtime.get_or_insert_with(Handle::current);
            return Poll::Pending;
        };
        self.pending = None;
        Poll::Ready(answer.unwrap_or_else(|Panicked| Err(panicked(self.elapsed))))
    }
}

impl<T: Send + 'static, L> Drop for StoreCall<'_, T, L>
where
    L: FnOnce(&Arc<Guard>, Result<T, StoreError>) + Send + 'static,
{
    fn drop(&mut self) {
        // One that was never polled hasn't begun.
        if let (Some((mut call, late)), Some(runtime)) = (self.pending.take(), self.runtime.take())
        {
            let (guard, elapsed) = (Arc::clone(self.guard), self.elapsed);
            let late = move |guard: &_, answer: Result<_, Panicked>| {
                late(
                    guard,
                    answer.unwrap_or_else(|Panicked| Err(panicked(elapsed))),
                );
            };
            let Some(limit) = self.limit else {
                let counted = LateCall::new(&guard.shared);
                runtime.spawn(async move {
                    late(&guard, call.await);
                    drop(counted);
                });
                return;
            };
            // A caller that went away says nothing about the store.
            runtime.spawn(async move {
                if let Ok(answer) = timeout(limit, &mut call).await {
                    return late(&guard, answer);
                }
                let counted = LateCall::new(&guard.shared);
                late(&guard, call.await);
                drop(counted);
            });
        }
    }
}

/// How many calls go on after their limit. A store that hangs must not gather them without end.
#[derive(Debug, Default)]
pub(super) struct LateCalls(AtomicUsize);

impl LateCalls {
    pub(super) fn are_too_many(&self, settings: &Settings) -> bool {
        self.0.load(Ordering::Relaxed) >= settings.late_calls
    }
}

/// One of them. It counts until it is dropped, be it with a runtime that ends.
struct LateCall {
    shared: Arc<Shared>,
    _gauged: Gauged,
}

impl LateCall {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.late_calls.0.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Arc::clone(shared),
            _gauged: Gauged::one(metric::LATE_CALLS),
        }
    }
}

impl Drop for LateCall {
    fn drop(&mut self) {
        self.shared.late_calls.0.fetch_sub(1, Ordering::Relaxed);
    }
}
