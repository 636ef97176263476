use std::time::Duration;

use sqlx::Sqlite;

use super::{
    super::{
        error::failed,
        lookup::read,
        settle::{Failure, end, roll_back, save},
    },
    TransactionStore,
};
use crate::{
    StoreError, StoreErrorKind,
    store::{
        Claim,
        sql::{Busy, End, Returned, Slot, State, report_unknown_not_written},
    },
};

/// How a claim ends that is not simply committed.
impl TransactionStore {
    /// What became of a claim, read while holding the key's lock: only then does an absent record prove a rollback.
    pub(super) async fn verify(&self, claim: &Claim) -> Result<(), StoreError> {
        let unknown = |error| StoreError::new(StoreErrorKind::OutcomeUnknown, error);
        let mut transaction = self.begin(None).await.map_err(unknown)?;
        let found = match transaction.connection() {
            Some(connection) => read(connection, claim.key()).await,
            None => Err(StoreErrorKind::Other.into()),
        };
        end(transaction).await;
        let found = found.map_err(unknown)?;
        match &found.stored {
            Some(stored) if stored.nonce == claim.nonce() => match stored.state {
                State::Completed => Ok(()),
                State::Running | State::Abandoned => Err(StoreErrorKind::Misused.into()),
            },
            _ if found.live().is_some() => Err(StoreErrorKind::LostClaim.into()),
            _ => Err(StoreErrorKind::RolledBack.into()),
        }
    }

    /// Records a transaction that the handler ended by itself, before the key is free again.
    pub(super) async fn settled(
        &self,
        claim: &Claim,
        retention: Duration,
        result: Result<(), Failure>,
    ) -> Result<(), StoreError> {
        match result {
            Ok(()) => Ok(()),
            Err(Failure::Store(error)) => Err(error),
            Err(Failure::EndedByHandler(kept)) => {
                if let Err(error) = save(&self.pool, claim, None, retention).await {
                    report_unknown_not_written(claim, &failed(error));
                }
                drop(kept);
                Err(StoreErrorKind::Misused.into())
            }
        }
    }

    pub(super) async fn undo(&self, claim: &Claim) -> Result<(), StoreError> {
        let Some(slot) = claim.attachments().get::<Slot<Sqlite>>() else {
            return undone(self.verify_foreign(claim).await);
        };
        let mut end = slot.end().await;
        match *end {
            Some(End::Committed) => return Err(StoreErrorKind::LostClaim.into()),
            Some(End::Misused) => return Err(StoreErrorKind::Misused.into()),
            Some(End::RolledBack) => return Ok(()),
            Some(End::Unsure) => return undone(self.verify(claim).await),
            // What holds if this call is dropped.
            None => *end = Some(End::Unsure),
        }
        let result = match slot.take_back() {
            Returned::Transaction { transaction, .. } => {
                let rolled_back = roll_back(transaction, claim.interrupted()).await;
                self.settled(claim, slot.retention(), rolled_back).await
            }
            Returned::Out => Err(self.undo_when_back(claim, slot)),
            Returned::Gone => undone(self.verify(claim).await),
        };
        *end = Some(match &result {
            Ok(()) => End::RolledBack,
            Err(error) => End::after(error),
        });
        result
    }

    /// The handler still has the transaction. It is rolled back when it is dropped at last; what the handler does until then
    /// may be to end it, after which the key must not be free.
    pub(super) fn undo_when_back(&self, claim: &Claim, slot: &Slot<Sqlite>) -> StoreError {
        let (store, claim, retention) = (self.clone(), claim.clone(), slot.retention());
        slot.when_back(move |late| async move {
            let rolled_back = roll_back(late, true).await;
            drop(store.settled(&claim, retention, rolled_back).await);
        });
        StoreErrorKind::Misused.into()
    }

    /// A claim that carries no transaction. If another run has the key here, waiting for it would tell nothing more.
    pub(super) async fn verify_foreign(&self, claim: &Claim) -> Result<(), StoreError> {
        match self.registry.look(claim.key()) {
            Some(Busy::Running(_)) => Err(StoreErrorKind::LostClaim.into()),
            Some(Busy::Reserving(_)) | None => self.verify(claim).await,
        }
    }
}

/// What the end of a claim means for giving it up.
fn undone(verified: Result<(), StoreError>) -> Result<(), StoreError> {
    match verified {
        Ok(()) => Err(StoreErrorKind::LostClaim.into()),
        Err(error) if error.kind() == StoreErrorKind::RolledBack => Ok(()),
        Err(error) => Err(error),
    }
}
