use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    task::{JoinHandle, yield_now},
    time::sleep,
};

use crate::{
    StoreError, StoreErrorKind,
    config::LONGEST,
    defaults, event,
    flow::{Panicked, catch},
    jitter,
    store::Store,
};

/// A background task that removes expired records of a store, until it is stopped.
///
/// Records that have expired count as absent, but nothing else removes them. It may run in every process that uses the
/// store: the first purge comes after a random part of the interval, and the others at intervals that differ by up to a
/// tenth, so that processes that start together don't purge together. Each purge goes on, batch by batch, until a batch
/// isn't full. An error, or a panic of the store, is an event (feature `tracing`), and the next purge comes at its time.
///
/// ```
/// # use tower_idempotency::{IdempotencyLayer, MemoryStore, Purger, ScopeBy};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let store = MemoryStore::new();
/// let purger = Purger::new(store.clone()).spawn();
/// let layer = IdempotencyLayer::new(store, ScopeBy::single_tenant());
/// // serve; then:
/// purger.stop().await;
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it purges nothing until it is spawned"]
pub struct Purger {
    store: Arc<dyn Store>,
    interval: Duration,
    batch: u32,
}

impl Purger {
    /// A purger of this store.
    pub fn new(store: impl Store) -> Self {
        Self {
            store: Arc::new(store),
            interval: defaults::PURGE_INTERVAL,
            batch: defaults::PURGE_BATCH,
        }
    }

    /// The time between two purges (default: 60 s).
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// How many records one call of the store removes at most (default: 1000). A database removes them in one transaction, or
    /// in a few: more at a time take less work in all, and keep others waiting for longer.
    pub fn with_batch(mut self, records: u32) -> Self {
        self.batch = records;
        self
    }

    /// Starts the task.
    ///
    /// # Panics
    ///
    /// If the interval is zero or above ten years, or the batch zero. The message names the setting. Also outside of a Tokio
    /// runtime.
    pub fn spawn(self) -> PurgerHandle {
        assert!(
            !self.interval.is_zero(),
            "with_interval: must be longer than zero"
        );
        assert!(
            self.interval <= LONGEST,
            "with_interval: must be at most {LONGEST:?}"
        );
        assert!(self.batch > 0, "with_batch: must be at least one record");
        let (stop, stopped) = oneshot::channel();
        PurgerHandle {
            task: tokio::spawn(self.run(stopped)),
            stop,
        }
    }

    /// Only ever stopped between two calls of the store: one that is dropped may leave a connection in mid-statement.
    async fn run(self, stopped: oneshot::Receiver<()>) {
        let mut stopped = pin!(stopped);
        let mut pause = jitter::within(Duration::ZERO..=self.interval);
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => return,
                () = sleep(pause) => {}
            }
            while self.purge_batch().await {
                tokio::select! {
                    biased;
                    _ = &mut stopped => return,
                    () = yield_now() => {}
                }
            }
            let tenth = self.interval / 10;
            pause = jitter::within(self.interval - tenth..=self.interval + tenth);
        }
    }

    /// Whether there may be more to purge.
    async fn purge_batch(&self) -> bool {
        let purged = catch(async { self.store.purge_expired(self.batch).await }).await;
        let purged = purged.unwrap_or_else(|Panicked| {
            Err(StoreError::new(StoreErrorKind::Other, "the store panicked"))
        });
        match purged {
            Ok(0) => false,
            Ok(count) => {
                event::purged(count);
                count >= u64::from(self.batch)
            }
            Err(error) => {
                event::purge_failed(&error);
                false
            }
        }
    }
}

/// A running [`Purger`]. Dropping it stops the purger, without waiting for it.
#[derive(Debug)]
#[must_use = "dropping the handle stops the purger"]
pub struct PurgerHandle {
    /// Dropped to stop the task.
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl PurgerHandle {
    /// Stops the purger. A call of the store that is under way goes on to its end, and is waited for, however long it takes.
    ///
    /// # Cancel safety
    ///
    /// A dropped call stops the purger all the same.
    pub async fn stop(self) {
        drop(self.stop);
        // It can't panic, and if the runtime has ended it, it has stopped.
        drop(self.task.await);
    }
}
