//! The clauses of transaction stores can be kept, and each is broken by some store: shown by a store without a database,
//! as the ones with a database have their own tests.
#![cfg(feature = "conformance")]
#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::{
    collections::{BTreeSet, HashMap},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    conformance::{self, Harness},
    store::{Claim, Nonce, Record, RecordState, Reservation, Store, StoreKind, Terms},
};

/// A transaction store whose transactions hold nothing but the record.
#[derive(Debug)]
struct Toy {
    flaw: Option<Flaw>,
    created: Instant,
    rows: Mutex<Rows>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    HandsOutAClaimTwice,
    CommitsOnAbandon,
    CompletesWhatIsRolledBack,
    FailsToRenew,
    NamesTheWrongKind,
}

#[derive(Debug, Default)]
struct Rows {
    open: HashMap<RecordKey, Claim>,
    committed: HashMap<RecordKey, Row>,
    fence: u64,
}

#[derive(Clone, Debug)]
struct Row {
    claim: Claim,
    response: SavedResponse,
    expires: Instant,
}

impl Toy {
    fn new(flaw: Option<Flaw>) -> Self {
        Self {
            flaw,
            created: Instant::now(),
            rows: Mutex::default(),
        }
    }

    /// The rows, without those that expired.
    fn rows(&self) -> MutexGuard<'_, Rows> {
        let mut rows = self.rows.lock().unwrap();
        rows.committed.retain(|_, row| row.expires > Instant::now());
        rows
    }

    fn roll_back(&self, claim: &Claim) {
        self.rows()
            .open
            .retain(|_, open| open.nonce() != claim.nonce());
    }
}

#[async_trait]
impl Store for Toy {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        let mut rows = self.rows();
        let holder = rows
            .open
            .get(key)
            .or(rows.committed.get(key).map(|row| &row.claim));
        if let Some(holder) = holder.filter(|holder| holder.fingerprint() != fingerprint) {
            return Ok(Reservation::Mismatch(*holder.fingerprint()));
        }
        if let Some(row) = rows.committed.get(key) {
            return Ok(Reservation::replay(
                row.response.clone(),
                row.expires - Instant::now(),
            ));
        }
        if let Some(open) = rows.open.get(key) {
            let twice =
                self.flaw == Some(Flaw::HandsOutAClaimTwice) && open.nonce() == terms.nonce();
            return Ok(match twice {
                true => Reservation::Acquired(open.clone()),
                false => Reservation::in_flight(Duration::from_secs(1)),
            });
        }
        let clock = u64::try_from(self.created.elapsed().as_micros()).unwrap();
        rows.fence = clock.max(rows.fence + 1);
        let claim = Claim::new(*key, *fingerprint, terms.nonce(), 1, rows.fence);
        rows.open.insert(*key, claim.clone());
        Ok(Reservation::Acquired(claim))
    }

    async fn renew(&self, _: &Claim, _: Duration) -> Result<(), StoreError> {
        match self.flaw {
            Some(Flaw::FailsToRenew) => Err(StoreErrorKind::LostClaim.into()),
            _ => Ok(()),
        }
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let mut rows = self.rows();
        let own = |nonce: Option<Nonce>| nonce == Some(claim.nonce());
        if own(rows.committed.get(claim.key()).map(|row| row.claim.nonce())) {
            return Ok(());
        }
        if !own(rows.open.get(claim.key()).map(Claim::nonce))
            && self.flaw != Some(Flaw::CompletesWhatIsRolledBack)
        {
            return Err(StoreErrorKind::RolledBack.into());
        }
        rows.open.remove(claim.key());
        let row = Row {
            claim: claim.clone(),
            response: response.clone(),
            expires: Instant::now() + retention,
        };
        rows.committed.insert(*claim.key(), row);
        Ok(())
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.roll_back(claim);
        Ok(())
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        if self.flaw == Some(Flaw::CommitsOnAbandon) {
            return self
                .complete(claim, &SavedResponse::tombstone(), retention)
                .await;
        }
        self.roll_back(claim);
        Ok(())
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        Ok(self.rows().committed.get(key).map(|row| {
            Record::new(
                *row.claim.fingerprint(),
                row.claim.attempt(),
                row.claim.fence(),
                RecordState::Completed(row.response.clone()),
                row.expires - Instant::now(),
            )
        }))
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        Ok(self.rows().committed.remove(key).is_some())
    }

    async fn purge_expired(&self, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn kind(&self) -> StoreKind {
        match self.flaw {
            Some(Flaw::NamesTheWrongKind) => StoreKind::Lease,
            _ => StoreKind::Transaction,
        }
    }
}

struct Paused(Arc<Toy>);

#[async_trait]
impl Harness for Paused {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<Toy>::clone(&self.0)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

tower_idempotency::conformance_tests!(
    #[tokio::test(start_paused = true)]
    transaction: async || Paused(Arc::new(Toy::new(None)))
);

#[tokio::test(start_paused = true)]
async fn every_clause_of_transaction_stores_notices_the_flaw_that_it_is_about() {
    type Check = for<'a> fn(&'a dyn Harness) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
    macro_rules! push {
        (transaction::$clause:ident, $clauses:ident) => {
            $clauses.push((stringify!($clause), |harness| {
                Box::pin(conformance::transaction::$clause(harness))
            }));
        };
        ($group:ident::$clause:ident, $clauses:ident) => {};
    }
    let mut clauses: Vec<(&'static str, Check)> = Vec::new();
    tower_idempotency::__conformance_clauses!(transaction, [push] clauses);

    let mut noticed = BTreeSet::new();
    for (flaw, clause) in [
        (Flaw::HandsOutAClaimTwice, "a_repeated_reserve_is_in_flight"),
        (Flaw::CommitsOnAbandon, "an_abandoned_run_is_rolled_back"),
        (
            Flaw::CompletesWhatIsRolledBack,
            "a_rolled_back_claim_cant_complete",
        ),
        (Flaw::FailsToRenew, "renewing_a_transaction_is_ok"),
        (Flaw::NamesTheWrongKind, "a_transaction_store_says_so"),
    ] {
        let (_, check) = clauses.iter().find(|(name, _)| *name == clause).unwrap();
        let check = *check;
        let harness = Paused(Arc::new(Toy::new(Some(flaw))));
        let checked = tokio::spawn(async move { check(&harness).await }).await;
        assert!(
            checked.is_err_and(|error| error.is_panic()),
            "{flaw:?} went unnoticed"
        );
        noticed.insert(clause);
    }
    assert!(clauses.iter().all(|(name, _)| noticed.contains(name)));
}
