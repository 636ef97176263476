use std::time::Duration;

use sqlx::{Database, pool::PoolConnection};
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit, time::timeout};

use super::{ANSWER_LIMIT, Entry, Running};

/// An open transaction. Unless it is ended in order its connection is closed, never pooled: the server then rolls back.
pub(crate) struct Guarded<DB: Database>(Option<Open<DB>>);

struct Open<DB: Database> {
    connection: PoolConnection<DB>,
    kept: Kept,
    /// Where to close the connection: a guard may be dropped on any thread, and after the runtime ended.
    runtime: Handle,
}

/// What is given back only after the transaction has ended.
pub(crate) struct Kept {
    /// The key's place in the registry.
    pub(crate) entry: Option<Entry>,
    /// The turn among this process's writers, for a database that has one writer at a time.
    #[allow(dead_code, reason = "held, never looked at")]
    pub(crate) turn: Option<OwnedSemaphorePermit>,
    /// How long the database may take to end the transaction.
    answer_limit: Duration,
}

impl Kept {
    /// Of a run, which the database needn't outlast by much: one that doesn't answer has been lost on the way, and holds a
    /// connection of the pool.
    pub(crate) fn of(entry: Entry, run_limit: Duration) -> Self {
        Self {
            entry: Some(entry),
            answer_limit: run_limit.clamp(SHORTEST_ANSWER_LIMIT, ANSWER_LIMIT),
            ..Self::default()
        }
    }
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            entry: None,
            turn: None,
            answer_limit: ANSWER_LIMIT,
        }
    }
}

/// However short a run may be.
const SHORTEST_ANSWER_LIMIT: Duration = Duration::from_secs(5);

impl<DB: Database> Guarded<DB> {
    pub(crate) fn new(connection: PoolConnection<DB>, kept: Kept) -> Self {
        Self(Some(Open {
            connection,
            kept,
            runtime: Handle::current(),
        }))
    }

    /// The connection, unless it was taken away.
    pub(crate) fn connection(&mut self) -> Option<&mut DB::Connection> {
        self.0.as_mut().map(|open| &mut *open.connection)
    }

    /// How long the database may take to end the transaction.
    pub(crate) fn answer_limit(&self) -> Duration {
        let kept = self.0.as_ref().map(|open| &open.kept);
        kept.map_or(ANSWER_LIMIT, |kept| kept.answer_limit)
    }

    /// The reservation got its claim: duplicates needn't wait any more.
    pub(crate) fn set_running(&self, running: Running) {
        if let Some(entry) = self.0.as_ref().and_then(|open| open.kept.entry.as_ref()) {
            entry.set_running(running);
        }
    }

    /// The reservation got an answer: the record is there for duplicates, but the key isn't free yet.
    #[allow(
        dead_code,
        reason = "only Postgres answers before the transaction has ended"
    )]
    pub(crate) fn set_leaving(&self) {
        if let Some(entry) = self.0.as_ref().and_then(|open| open.kept.entry.as_ref()) {
            entry.set_leaving();
        }
    }

    /// Moves the transaction out and leaves nothing.
    pub(crate) fn take(&mut self) -> Option<Self> {
        self.0.take().map(|open| Self(Some(open)))
    }

    /// Gives the connection back to the pool: the transaction has ended.
    pub(crate) fn pool(mut self) {
        drop(self.0.take());
    }

    /// Closes the connection, which ends the transaction. What was kept may be kept a little longer.
    pub(crate) async fn close(mut self) -> Option<Kept> {
        match self.0.take() {
            Some(open) => Some(open.close().await),
            None => None,
        }
    }
}

impl<DB: Database> Open<DB> {
    async fn close(self) -> Kept {
        // An error tells of a connection that was broken before, and one that can't even be told goodbye is cut off by the
        // drop: it is gone either way.
        drop(timeout(CLOSE_LIMIT, self.connection.close()).await);
        self.kept
    }
}

/// How long a server may take to hear that a connection ends.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

impl<DB: Database> Drop for Guarded<DB> {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            let runtime = open.runtime.clone();
            // Within the runtime, because dropping a pooled connection spawns. A runtime that has ended drops the future here,
            // and the connection with it.
            let _entered = runtime.enter();
            runtime.spawn(async move { drop(open.close().await) });
        }
    }
}
