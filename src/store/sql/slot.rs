use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sqlx::Database;
use tokio::{
    runtime::Handle,
    sync::{Mutex as AsyncMutex, MutexGuard, OwnedMappedMutexGuard, OwnedMutexGuard},
};

use super::Guarded;
use crate::{StoreError, StoreErrorKind};

/// Where a claim's transaction waits for the handler to take it, and for the store to get it back.
///
/// Attached to the claim, so that it is in the request's extensions; those are cloned freely, and any clone is the same slot.
pub(crate) struct Slot<DB: Database>(Arc<Inner<DB>>);

struct Inner<DB: Database> {
    transaction: Arc<AsyncMutex<Guarded<DB>>>,
    stage: Mutex<Stage>,
    end: AsyncMutex<Option<End>>,
    retention: Duration,
    runtime: Handle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Ready,
    Taken,
    Settled,
}

/// How the settling of a claim ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Committed,
    RolledBack,
    Misused,
    /// Only the database knows.
    Unsure,
}

impl End {
    /// How a settling call ended that failed like this.
    pub(crate) fn after(error: &StoreError) -> Self {
        match error.kind() {
            StoreErrorKind::RolledBack | StoreErrorKind::Conflict | StoreErrorKind::LostClaim => {
                Self::RolledBack
            }
            StoreErrorKind::Misused => Self::Misused,
            StoreErrorKind::OutcomeUnknown
            | StoreErrorKind::Full
            | StoreErrorKind::Unavailable
            | StoreErrorKind::Other => Self::Unsure,
        }
    }
}

/// Why the handler doesn't get the transaction.
pub(crate) enum NotTaken {
    Already,
    Settled,
}

/// What the store gets back.
pub(crate) enum Returned<DB: Database> {
    Transaction {
        transaction: Guarded<DB>,
        unused: bool,
    },
    /// The handler still has it: see [`when_back`](Slot::when_back).
    Out,
    Gone,
}

/// The transaction in the handler's hands; dropping it gives it back.
pub(crate) type Lent<DB> = OwnedMappedMutexGuard<Guarded<DB>, <DB as Database>::Connection>;

impl<DB: Database> Slot<DB> {
    /// `retention` is for what must be recorded of a run that ended in no regular way.
    pub(crate) fn new(transaction: Guarded<DB>, retention: Duration) -> Self {
        Self(Arc::new(Inner {
            transaction: Arc::new(AsyncMutex::new(transaction)),
            stage: Mutex::new(Stage::Ready),
            end: AsyncMutex::new(None),
            retention,
            runtime: Handle::current(),
        }))
    }

    pub(crate) fn retention(&self) -> Duration {
        self.0.retention
    }

    /// Lends the transaction out, once.
    pub(crate) fn lend(&self) -> Result<Lent<DB>, NotTaken> {
        let mut stage = self.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        match *stage {
            Stage::Taken => return Err(NotTaken::Already),
            Stage::Settled => return Err(NotTaken::Settled),
            Stage::Ready => *stage = Stage::Taken,
        }
        // Nobody else locks it: only what is in stage Ready is lent, and what is settled is settled for good.
        let Ok(guard) = Arc::clone(&self.0.transaction).try_lock_owned() else {
            return Err(NotTaken::Settled);
        };
        OwnedMutexGuard::try_map(guard, Guarded::connection).map_err(|_gone| NotTaken::Settled)
    }

    /// Takes the transaction back for settling; from now on it isn't lent.
    pub(crate) fn take_back(&self) -> Returned<DB> {
        let stage = mem::replace(
            &mut *self.0.stage.lock().unwrap_or_else(PoisonError::into_inner),
            Stage::Settled,
        );
        let Ok(mut guard) = self.0.transaction.try_lock() else {
            return Returned::Out;
        };
        match guard.take() {
            Some(transaction) => Returned::Transaction {
                transaction,
                unused: stage == Stage::Ready,
            },
            None => Returned::Gone,
        }
    }

    /// How settling ended, if it did. One settling call at a time: a second waits here for the first.
    pub(crate) async fn end(&self) -> MutexGuard<'_, Option<End>> {
        self.0.end.lock().await
    }

    /// Ends a transaction that is out by this, once the handler gives it back.
    pub(crate) fn when_back<F: Future<Output = ()> + Send>(
        &self,
        end: impl FnOnce(Guarded<DB>) -> F + Send + 'static,
    ) {
        let transaction = Arc::clone(&self.0.transaction);
        self.0.runtime.spawn(async move {
            let late = transaction.lock_owned().await.take();
            if let Some(late) = late {
                end(late).await;
            }
        });
    }
}

impl<DB: Database> Clone for Slot<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
