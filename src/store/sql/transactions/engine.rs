use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{
    Opened, TransactionDialect,
    ending::{Failure, commit, roll_back},
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{
        Claim, Record, Reservation, Terms,
        sql::{
            ASK_AGAIN, Busy, End, Entry, Fences, Found, Kept, Registry, Returned, Running, Slot,
            State, report_unknown_not_written, report_unused,
        },
    },
};

/// The protocol of a transaction store, over what its database can do.
#[derive(Clone, Debug)]
pub(crate) struct Transactions<D> {
    dialect: D,
    registry: Registry,
    fences: Fences,
}

impl<D: TransactionDialect> Transactions<D> {
    pub(crate) fn new(dialect: D) -> Self {
        Self {
            dialect,
            registry: Registry::default(),
            fences: Fences::default(),
        }
    }

    pub(crate) fn dialect(&self) -> &D {
        &self.dialect
    }

    /// Sets the store up for another table, whose keys have nothing to do with those that run already.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn set_up_anew(&mut self) -> &mut D {
        self.registry = Registry::default();
        &mut self.dialect
    }

    /// The record of a key, expired or not.
    pub(crate) async fn read(&self, key: &RecordKey) -> Result<Found, StoreError> {
        self.dialect.read(key).await
    }

    /// The record of a key as an operator sees it. A run of this store's is told without a connection, which it may have the last of.
    pub(crate) async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        match self.registry.look(key) {
            Some(Busy::Running(running)) => Ok(Some(running.record())),
            _ => self.read(key).await?.record(),
        }
    }

    pub(crate) async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        let mut reads_first = D::READS_FIRST;
        loop {
            let busy = match self.registry.look(key) {
                Some(busy) => busy,
                None => {
                    if reads_first && let Some(answer) = self.answer(key, fingerprint).await? {
                        return Ok(answer);
                    }
                    match self.registry.enter(key) {
                        Ok(entry) => return self.claim(entry, key, fingerprint, terms).await,
                        Err(busy) => busy,
                    }
                }
            };
            match busy {
                Busy::Running(running) if running.fingerprint == *fingerprint => {
                    return Ok(Reservation::InFlight {
                        retry_after: ASK_AGAIN,
                    });
                }
                Busy::Running(running) => {
                    return Ok(Reservation::Mismatch(running.fingerprint));
                }
                Busy::Leaving(wait) => {
                    if let Some(answer) = self.answer(key, fingerprint).await? {
                        return Ok(answer);
                    }
                    wait.ended().await;
                }
                Busy::Reserving(wait) => {
                    wait.ended().await;
                    // Duplicates of a key that is done come all at once, and needn't queue for a transaction each.
                    reads_first = true;
                }
            }
        }
    }

    /// What the record answers, if there is one.
    async fn answer(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
    ) -> Result<Option<Reservation>, StoreError> {
        self.dialect.read(key).await?.answer(fingerprint)
    }

    async fn claim(
        &self,
        entry: Entry,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        let since = Instant::now();
        let kept = Kept::of(entry, terms.run_limit());
        match self.dialect.open(kept, key, fingerprint, terms).await? {
            Opened::Free(transaction, found) => {
                let fence = self.fences.next(&found);
                transaction.set_running(Running {
                    fingerprint: *fingerprint,
                    fence,
                    since,
                    limit: terms.run_limit(),
                });
                let slot = Slot::new(transaction, terms.retention());
                let claim = Claim::new(*key, *fingerprint, terms.nonce(), 1, fence);
                Ok(Reservation::Acquired(claim.with_attachment(slot)))
            }
            Opened::Answered(answer) => Ok(answer),
        }
    }

    pub(crate) async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let Some(slot) = claim.attachments().get::<Slot<D::Database>>() else {
            return self.verify_foreign(claim).await;
        };
        let mut end = slot.end().await;
        match *end {
            Some(End::Committed) => return Ok(()),
            Some(End::Misused) => return Err(StoreErrorKind::Misused.into()),
            Some(End::RolledBack | End::Unsure) => return self.verify(claim).await,
            // What holds if this call is dropped.
            None => *end = Some(End::Unsure),
        }
        let result = match slot.take_back() {
            Returned::Transaction {
                transaction,
                unused,
            } => {
                let committed =
                    commit(&self.dialect, transaction, claim, response, retention).await;
                if unused && committed.is_ok() {
                    report_unused(claim);
                }
                self.settled(claim, slot.retention(), committed).await
            }
            Returned::Out => Err(self.undo_when_back(claim, slot)),
            Returned::Gone => self.verify(claim).await,
        };
        *end = Some(match &result {
            Ok(()) => End::Committed,
            Err(error) => End::after(error),
        });
        result
    }

    /// Rolls a claim back: what `release` and `abandon` are for a transaction.
    pub(crate) async fn undo(&self, claim: &Claim) -> Result<(), StoreError> {
        let Some(slot) = claim.attachments().get::<Slot<D::Database>>() else {
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
                let rolled_back =
                    roll_back(&self.dialect, transaction, claim, claim.interrupted()).await;
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

    /// Records a transaction that the handler ended by itself, before the key is free again.
    async fn settled(
        &self,
        claim: &Claim,
        retention: Duration,
        result: Result<(), Failure<D::Database>>,
    ) -> Result<(), StoreError> {
        match result {
            Ok(()) => Ok(()),
            Err(Failure::Store(error)) => Err(error),
            Err(Failure::EndedByHandler(mut ended)) => {
                let limit = ended.answer_limit();
                // At once and here: another connection may have to be waited for, and the key's lock went with the transaction.
                let saved = match ended.connection() {
                    Some(connection) => {
                        let saving = self.dialect.save_unknown_on(connection, claim, retention);
                        matches!(timeout(limit, saving).await, Ok(Ok(())))
                    }
                    None => false,
                };
                let kept = ended.close().await;
                if !saved && let Err(error) = self.dialect.save_unknown(claim, retention).await {
                    report_unknown_not_written(claim, &error);
                }
                drop(kept);
                Err(StoreErrorKind::Misused.into())
            }
        }
    }

    /// The handler still has the transaction. It is rolled back when it is dropped at last; what the handler does until then
    /// may be to end it, after which the key must not be free.
    fn undo_when_back(&self, claim: &Claim, slot: &Slot<D::Database>) -> StoreError {
        let (store, claim, retention) = (self.clone(), claim.clone(), slot.retention());
        slot.when_back(move |late| async move {
            let rolled_back = roll_back(&store.dialect, late, &claim, true).await;
            drop(store.settled(&claim, retention, rolled_back).await);
        });
        StoreErrorKind::Misused.into()
    }

    /// What became of a claim. Its record tells, whoever has the key's lock, and be it for long; that there is none proves something
    /// only while holding the lock.
    async fn verify(&self, claim: &Claim) -> Result<(), StoreError> {
        let unknown = |error| StoreError::new(StoreErrorKind::OutcomeUnknown, error);
        let found = self.dialect.read(claim.key()).await.map_err(unknown)?;
        if let Some(told) = told_by(&found, claim) {
            return told;
        }
        let found = self.dialect.read_locked(claim.key()).await;
        let found = found.map_err(unknown)?;
        told_by(&found, claim).unwrap_or(Err(match found.live() {
            Some(_) => StoreErrorKind::LostClaim.into(),
            None => StoreErrorKind::RolledBack.into(),
        }))
    }

    /// A claim that carries no transaction. If another run has the key here, waiting for it would tell nothing more.
    async fn verify_foreign(&self, claim: &Claim) -> Result<(), StoreError> {
        match self.registry.look(claim.key()) {
            Some(Busy::Running(_)) => Err(StoreErrorKind::LostClaim.into()),
            Some(Busy::Reserving(_) | Busy::Leaving(_)) | None => self.verify(claim).await,
        }
    }
}

/// What the record of a claim that should have been completed says, if it is there.
fn told_by(found: &Found, claim: &Claim) -> Option<Result<(), StoreError>> {
    let stored = found.stored.as_ref()?;
    (stored.nonce == claim.nonce()).then(|| match stored.state {
        State::Completed => Ok(()),
        State::Running | State::Abandoned => Err(StoreErrorKind::Misused.into()),
    })
}

/// What the end of a claim means for giving it up.
fn undone(verified: Result<(), StoreError>) -> Result<(), StoreError> {
    match verified {
        Ok(()) => Err(StoreErrorKind::LostClaim.into()),
        Err(error) if error.kind() == StoreErrorKind::RolledBack => Ok(()),
        Err(error) => Err(error),
    }
}
