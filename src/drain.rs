use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

/// Waits at shutdown for the runs and background settlements that no connection waits for any more.
///
/// Clones count together, so one `Drain` can serve several layers.
///
/// ```
/// # use std::time::Duration;
/// # use tower_idempotency::{Drain, IdempotencyLayer, MemoryStore, ScopeBy};
/// # async fn shutdown() {
/// let drain = Drain::new();
/// let layer = IdempotencyLayer::new(MemoryStore::new(), ScopeBy::single_tenant()).with_drain(drain.clone());
/// // serve, with a graceful shutdown; then:
/// let left = drain.wait(Duration::from_secs(30)).await;
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Drain(Arc<Inner>);

#[derive(Default)]
struct Inner {
    running: AtomicUsize,
    idle: Notify,
}

impl Drain {
    /// One that counts nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many runs and settlements are going on.
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::Acquire)
    }

    /// Waits until nothing is running, at most for `limit`, and tells how many were left then.
    ///
    /// Stop accepting requests first, or there is always something running.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing; the runs go on.
    #[must_use = "what is left is cut off when the process ends"]
    pub async fn wait(&self, limit: Duration) -> usize {
        let idle = async {
            loop {
                let notified = self.0.idle.notified();
                if self.running() == 0 {
                    break;
                }
                notified.await;
            }
        };
        match tokio::time::timeout(limit, idle).await {
            Ok(()) => 0,
            Err(_elapsed) => self.running(),
        }
    }

    /// Counts one more until the token is dropped.
    pub(crate) fn token(&self) -> DrainToken {
        self.0.running.fetch_add(1, Ordering::AcqRel);
        DrainToken(Arc::clone(&self.0))
    }
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain")
            .field("running", &self.running())
            .finish()
    }
}

pub(crate) struct DrainToken(Arc<Inner>);

impl Drop for DrainToken {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
