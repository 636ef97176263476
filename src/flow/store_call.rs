use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::runtime::Handle;

use crate::{StoreError, StoreErrorKind};

/// Waits for a call of the store, at most for `limit`; then the error has the kind `elapsed`.
///
/// The limit ends the wait, and so does a caller that goes away, but never the call: a `BEGIN` or `COMMIT` that is dropped
/// half-way leaves a pooled connection inside a transaction, or commits unseen. The call then goes on by itself,
/// and what it finds is given to `late`.
pub(super) async fn within<T: Send + 'static>(
    limit: Duration,
    elapsed: StoreErrorKind,
    call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    late: impl FnOnce(Result<T, StoreError>) + Send + Unpin + 'static,
) -> Result<T, StoreError> {
    let call = StoreCall {
        pending: Some((Box::pin(call), late)),
    };
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result,
        Err(cause) => Err(StoreError::new(elapsed, cause)),
    }
}

/// For calls whose late result changes nothing.
pub(super) fn ignore<T>(_late: Result<T, StoreError>) {}

type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

struct StoreCall<T: Send + 'static, L: FnOnce(T) + Send + 'static> {
    pending: Option<(Call<T>, L)>,
}

impl<T: Send, L: FnOnce(T) + Send + Unpin> Future for StoreCall<T, L> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some((call, _late)) = &mut self.pending else {
            return Poll::Pending;
        };
        let result = std::task::ready!(call.as_mut().poll(cx));
        self.pending = None;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static, L: FnOnce(T) + Send + 'static> Drop for StoreCall<T, L> {
    fn drop(&mut self) {
        // Without a runtime there is nothing left that could poll it.
        if let (Some((call, late)), Ok(runtime)) = (self.pending.take(), Handle::try_current()) {
            runtime.spawn(async move { late(call.await) });
        }
    }
}
