use std::{sync::Arc, time::Duration};

use super::{
    Guard,
    background::{self, Owed},
    reserve::Told,
    run::Run,
    store_call::{ignore, inspect, within},
};
use crate::{
    Outcome, RejectionKind, SavedResponse, StoreError, StoreErrorKind, event,
    store::{Claim, RecordState, StoreKind},
};

/// How a claim is to end.
#[derive(Clone)]
pub(super) enum Settlement {
    Complete(SavedResponse),
    Release,
    Abandon,
}

/// Whether it ended so.
pub(super) enum Settled {
    /// It did, or will: the caller gets the handler's answer.
    AsMeant(Outcome),
    /// It did not: the caller gets this instead.
    Otherwise(Told),
    /// The transaction had lost against another one: nothing happened, and the same run may succeed.
    Conflict,
}

impl Settlement {
    /// What it makes of the request, if it comes about.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Complete(saved) if saved.is_tombstone() => Outcome::NotKept,
            Self::Complete(_) => Outcome::Saved,
            Self::Release => Outcome::Released,
            Self::Abandon => Outcome::Abandoned,
        }
    }
}

impl Run {
    /// Settles the claim. After the handler has answered with something to be saved, no path from here frees the key.
    pub(super) async fn settle(&self, settlement: Settlement) -> Settled {
        if !self.protected {
            match settlement {
                Settlement::Complete(saved) => {
                    let told = self.tell_unprotected(saved).await;
                    event::settled_unprotected(self.claim.key(), told);
                }
                // The store may have claimed the key and lost its answer only.
                Settlement::Release if !self.guard.shared.is_overdue(&self.guard.settings) => {
                    background::give_back(&self.guard, Claim::clone(&self.claim));
                }
                Settlement::Release | Settlement::Abandon => {}
            }
            return Settled::AsMeant(Outcome::Unprotected);
        }
        let meant = settlement.outcome();
        if matches!(settlement, Settlement::Abandon) {
            self.context.notes().written().await;
        }
        let result = settle(&self.guard, &self.claim, settlement.clone()).await;
        let Err(error) = result else {
            return Settled::AsMeant(meant);
        };
        event::settlement_failed(self.claim.key(), &error);
        if error.kind() == StoreErrorKind::LostClaim {
            return Settled::Otherwise(from_record(&self.guard, &self.claim).await);
        }
        match self.guard.kind {
            StoreKind::Lease => {
                let completes = matches!(settlement, Settlement::Complete(_));
                self.settle_later(settlement);
                Settled::AsMeant(if completes { Outcome::Owed } else { meant })
            }
            // Boxed, as few settlements fail.
            StoreKind::Transaction => Box::pin(self.resolve(settlement, error)).await,
        }
    }

    /// The store could not be asked before; if it can be told now, a retry is answered from the record.
    async fn tell_unprotected(&self, saved: SavedResponse) -> bool {
        let guard = &self.guard;
        if guard.shared.is_overdue(&guard.settings) {
            return false;
        }
        // It counts as long as the call goes on.
        let owed = Owed::new(&guard.shared, saved.size());
        let (telling, claim) = (Arc::clone(guard), Arc::clone(&self.claim));
        let call = async move {
            let retention = telling.settings.retention;
            let told = telling.store.complete(&claim, &saved, retention).await;
            drop(owed);
            told
        };
        let elapsed = StoreErrorKind::OutcomeUnknown;
        let told = within(guard, "complete", guard.call_limit, elapsed, call, ignore).await;
        told.is_ok()
    }

    /// A lease store failed. The handler's answer stands, and the store will be told when it is back.
    pub(super) fn settle_later(&self, settlement: Settlement) {
        match settlement {
            Settlement::Complete(saved) => {
                background::complete(&self.guard, Arc::clone(&self.claim), saved, self.asked);
            }
            Settlement::Release => background::release(&self.guard, Arc::clone(&self.claim)),
            // The lease ends by itself, which comes to the same.
            Settlement::Abandon => {}
        }
    }

    /// A transaction store failed: nothing happened, unless `COMMIT` was sent and its answer is missing.
    async fn resolve(&self, settlement: Settlement, error: StoreError) -> Settled {
        let misused = error.kind() == StoreErrorKind::Misused;
        // A run that was cut off has answered nothing that could rest on the transaction.
        if error.kind() == StoreErrorKind::Conflict && !self.claim.interrupted() {
            return Settled::Conflict;
        }
        match settlement {
            Settlement::Complete(_) if error.kind() == StoreErrorKind::OutcomeUnknown => {
                self.ask_again(settlement).await
            }
            // The handler kept the transaction or ended it: what it answered need not be so.
            Settlement::Complete(_) | Settlement::Release if misused => {
                refused(RejectionKind::HandlerFailed)
            }
            Settlement::Complete(_) => refused(RejectionKind::NotCommitted),
            // Rolled back, or cut off, which is the same to the database.
            Settlement::Release | Settlement::Abandon => Settled::AsMeant(settlement.outcome()),
        }
    }

    /// The same completion once more: the store writes nothing then, it tells what became of the first.
    async fn ask_again(&self, completion: Settlement) -> Settled {
        let meant = completion.outcome();
        match settle(&self.guard, &self.claim, completion).await {
            Ok(()) => Settled::AsMeant(meant),
            Err(error) => match error.kind() {
                StoreErrorKind::RolledBack => refused(RejectionKind::NotCommitted),
                StoreErrorKind::Conflict => Settled::Conflict,
                StoreErrorKind::Misused => refused(RejectionKind::HandlerFailed),
                StoreErrorKind::LostClaim => {
                    Settled::Otherwise(from_record(&self.guard, &self.claim).await)
                }
                StoreErrorKind::OutcomeUnknown
                | StoreErrorKind::Full
                | StoreErrorKind::Unavailable
                | StoreErrorKind::Other => Settled::Otherwise(pending(&self.claim)),
            },
        }
    }
}

fn refused(kind: RejectionKind) -> Settled {
    Settled::Otherwise(Told::Refusal(kind))
}

fn pending(claim: &Claim) -> Told {
    event::outcome_pending(claim.key());
    Told::Refusal(RejectionKind::OutcomePending)
}

/// Tells the store, and waits for its answer within the limit of a call.
pub(super) async fn settle(
    guard: &Arc<Guard>,
    claim: &Arc<Claim>,
    settlement: Settlement,
) -> Result<(), StoreError> {
    tell(guard, claim, settlement, guard.call_limit).await
}

/// Tells the store, and waits for its answer at most for `limit`.
pub(super) async fn tell(
    guard: &Arc<Guard>,
    claim: &Arc<Claim>,
    settlement: Settlement,
    limit: Duration,
) -> Result<(), StoreError> {
    let (name, elapsed) = match settlement {
        // Nobody knows then whether it was written.
        Settlement::Complete(_) => ("complete", StoreErrorKind::OutcomeUnknown),
        Settlement::Release => ("release", StoreErrorKind::Unavailable),
        Settlement::Abandon => ("abandon", StoreErrorKind::Unavailable),
    };
    let (telling, claim) = (Arc::clone(guard), Arc::clone(claim));
    let call = async move {
        let (store, retention) = (&telling.store, telling.settings.retention);
        match settlement {
            Settlement::Complete(saved) => store.complete(&claim, &saved, retention).await,
            // That this run had no effect says nothing of the one that it took over from: the next one must be told, too.
            Settlement::Release if claim.attempt() > 1 => store.abandon(&claim, retention).await,
            Settlement::Release => store.release(&claim).await,
            Settlement::Abandon => store.abandon(&claim, retention).await,
        }
    };
    within(guard, name, limit, elapsed, call, ignore).await
}

/// The claim was lost, so the record decides what its caller gets. The fingerprint is compared first. The handler has run: what is told
/// never says that nothing was done.
async fn from_record(guard: &Arc<Guard>, claim: &Claim) -> Told {
    match inspect(guard, *claim.key()).await {
        Ok(Some(record)) if record.fingerprint.tag() != claim.fingerprint().tag() => {
            // Not comparable here. A retry, which has the request, will be told.
            pending(claim)
        }
        Ok(Some(record)) if record.fingerprint != *claim.fingerprint() => {
            Told::Refusal(match guard.kind {
                StoreKind::Lease => RejectionKind::OutcomeUnknown,
                // Its own transaction is rolled back.
                StoreKind::Transaction => RejectionKind::KeyReused,
            })
        }
        Ok(Some(record)) => match record.state {
            RecordState::Completed(saved) => Told::Replay(saved, record.expires_in),
            RecordState::InFlight { .. } => Told::IN_FLIGHT,
            RecordState::Unknown => Told::Refusal(RejectionKind::OutcomeUnknown),
        },
        Ok(None) => Told::Refusal(RejectionKind::OutcomeUnknown),
        Err(_unavailable) => pending(claim),
    }
}
