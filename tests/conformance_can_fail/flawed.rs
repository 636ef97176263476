use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tower_idempotency::{
    Fingerprint, Identity, MemoryStore, RecordKey, SavedResponse, StoreError, StoreErrorKind, Tag,
    store::{
        Claim, Nonce, Record, RecordState, Reservation, Steps, Store, StoreKind, Takeover, Terms,
    },
};

use crate::steps::Noted;

/// Mistakes that stores made, or could make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flaw {
    None,
    MakesItsOwnNonce,
    AcquiresTwice,
    AcquiresTheTenth,
    FreesForAll,
    PadsKeys,
    RetriesAtOnce,
    LooksAtTheRunFirst,
    LooksAtTheLeaseFirst,
    ReplaysOnce,
    HandsOutAClaimOnce,
    AlwaysTakesOver,
    NeverTakesOver,
    ForgetsTheAttempt,
    KeepsOneFence,
    DropsTrailers,
    KeepsTheLastResponse,
    ReleasesCompleted,
    NeverReleases,
    AbandonsByLapse,
    CompletesAbandoned,
    IgnoresTheNonce,
    RefusesLapsed,
    RefusesLost,
    NeverExpires,
    KeepsTheFirstRetention,
    TellsTheWholeRetention,
    ExpiresWithTheLease,
    IgnoresRenewals,
    ForgetsOnAbandon,
    ShowsNothing,
    ShowsLapsedAsRunning,
    SaysItForgotNothing,
    PurgesEverything,
    IsDown,
    SaltsAnew,
    NamesTheWrongKind,
    ListsNoLapsed,
    CountsFromTheFirstClaim,
    ListsWhateverAge,
    ListsSettled,
    OverfillsPages,
    SkipsTheLastOfAPage,
    ListsTwice,
    CountsNothing,
    DropsNotesOnTakeover,
    KeepsTheLastNote,
    LosesNotesAtOnce,
    NotesWhatIsOver,
    RenewsByNoting,
    CutsNotes,
}

/// A memory store with one flaw.
#[derive(Debug)]
pub(crate) struct Flawed {
    pub(crate) flaw: Flaw,
    pub(crate) inner: MemoryStore,
    /// The last claim on each key, and its terms.
    claims: Mutex<HashMap<RecordKey, (Claim, Terms)>>,
    /// How often a key was in flight.
    refusals: Mutex<HashMap<RecordKey, usize>>,
    released: Mutex<HashSet<RecordKey>>,
    pub(crate) noted: Noted,
}

impl Flawed {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self {
            flaw,
            inner: MemoryStore::new(),
            claims: Mutex::default(),
            refusals: Mutex::default(),
            released: Mutex::default(),
            noted: Noted::default(),
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    pub(crate) fn claims(&self) -> MutexGuard<'_, HashMap<RecordKey, (Claim, Terms)>> {
        self.claims.lock().unwrap()
    }

    fn last(&self, key: &RecordKey) -> Option<(Claim, Terms)> {
        self.claims().get(key).cloned()
    }

    pub(crate) async fn state(&self, key: &RecordKey) -> Option<RecordState> {
        Some(self.inner.inspect(key).await.unwrap()?.state)
    }

    /// The terms as the flaw changes them.
    fn terms(&self, terms: &Terms) -> Terms {
        let retention = match self.flaw {
            Flaw::NeverExpires => terms.retention() * 1000,
            Flaw::ExpiresWithTheLease => Duration::ZERO,
            _ => terms.retention(),
        };
        let takeover = match self.flaw {
            Flaw::AlwaysTakesOver => Takeover::RunAgain,
            Flaw::NeverTakesOver => Takeover::Refuse,
            _ => terms.takeover(),
        };
        Terms::new(terms.nonce(), terms.lease(), retention).with_takeover(takeover)
    }

    /// The new claim as the flaw changes it.
    fn acquired(&self, claim: Claim, terms: &Terms) -> Reservation {
        let remembered = (claim.clone(), terms.clone());
        self.claims().insert(*claim.key(), remembered);
        let nonce = match self.flaw {
            Flaw::MakesItsOwnNonce => Nonce::random(),
            _ => claim.nonce(),
        };
        let attempt = match self.flaw {
            Flaw::ForgetsTheAttempt => 1,
            _ => claim.attempt(),
        };
        let fence = match self.flaw {
            Flaw::KeepsOneFence => 1,
            _ => claim.fence(),
        };
        let (key, fingerprint) = (*claim.key(), *claim.fingerprint());
        Reservation::Acquired(Claim::new(key, fingerprint, nonce, attempt, fence))
    }

    /// Whether the flaw hands out a claim where the key is in flight.
    fn acquires_in_flight(&self, key: &RecordKey) -> bool {
        let mut refusals = self.refusals.lock().unwrap();
        let refused = refusals.entry(*key).or_default();
        *refused += 1;
        match self.flaw {
            Flaw::AcquiresTwice => true,
            Flaw::AcquiresTheTenth => *refused == 10,
            Flaw::FreesForAll => self.released.lock().unwrap().contains(key),
            _ => false,
        }
    }

    /// Whether a call with this claim fails because of the flaw; else the claim to make it with.
    pub(crate) async fn checked(&self, claim: &Claim) -> Result<Claim, StoreError> {
        let state = self.state(claim.key()).await;
        let refused = match self.flaw {
            Flaw::RefusesLapsed => matches!(state, Some(RecordState::Unknown)),
            Flaw::RefusesLost => state.is_none(),
            _ => false,
        };
        match self.last(claim.key()) {
            _ if refused => Err(StoreErrorKind::LostClaim.into()),
            Some((last, _)) if self.has(Flaw::IgnoresTheNonce) => Ok(last),
            _ => Ok(claim.clone()),
        }
    }
}

#[async_trait]
impl Store for Flawed {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        let mut bytes = *key.as_bytes();
        if self.has(Flaw::PadsKeys) && bytes[31] == b' ' {
            bytes[31] = 0;
        }
        let key = &RecordKey::from_bytes(bytes);
        let terms = &self.terms(terms);
        let repeated = |(last, _): (Claim, Terms)| last.nonce() == terms.nonce();
        if self.has(Flaw::HandsOutAClaimOnce) && self.last(key).is_some_and(repeated) {
            return Ok(Reservation::in_flight(Duration::from_secs(1)));
        }
        let reservation = self.inner.reserve(key, fingerprint, terms).await?;
        let state = self.state(key).await;
        Ok(match (self.flaw, reservation, state) {
            (_, Reservation::Acquired(claim), _) => self.acquired(claim, terms),
            (_, Reservation::InFlight { .. }, _) if self.acquires_in_flight(key) => {
                Reservation::Acquired(Claim::new(*key, *fingerprint, terms.nonce(), 1, 1))
            }
            (Flaw::RetriesAtOnce, Reservation::InFlight { .. }, _) => {
                Reservation::in_flight(Duration::ZERO)
            }
            (
                Flaw::LooksAtTheRunFirst,
                Reservation::Mismatch(_),
                Some(RecordState::InFlight { lease_left, .. }),
            ) => Reservation::in_flight(lease_left),
            (
                Flaw::LooksAtTheLeaseFirst,
                Reservation::Mismatch(stored),
                Some(RecordState::Unknown),
            ) => self.inner.reserve(key, &stored, terms).await?,
            (Flaw::ReplaysOnce, replay @ Reservation::Replay { .. }, _) => {
                self.inner.forget(key).await?;
                replay
            }
            (Flaw::TellsTheWholeRetention, Reservation::Replay { response, .. }, _) => {
                Reservation::replay(response, Duration::from_secs(60))
            }
            (_, reservation, _) => reservation,
        })
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        let claim = &self.checked(claim).await?;
        match self.flaw {
            Flaw::IgnoresRenewals => Ok(()),
            _ => self.inner.renew(claim, lease).await,
        }
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let claim = &self.checked(claim).await?;
        let forgets_first = matches!(
            (self.flaw, self.state(claim.key()).await),
            (Flaw::CompletesAbandoned, Some(RecordState::Unknown))
                | (Flaw::KeepsTheLastResponse, Some(RecordState::Completed(_)))
        );
        if forgets_first {
            self.inner.forget(claim.key()).await?;
        }
        let retention = match (self.flaw, self.last(claim.key())) {
            (Flaw::KeepsTheFirstRetention, Some((_, terms))) => terms.retention(),
            (Flaw::NeverExpires, _) => retention * 1000,
            _ => retention,
        };
        let response = match (self.flaw, response.status()) {
            (Flaw::DropsTrailers, Some(status)) => {
                let headers = response.headers().cloned().unwrap_or_default();
                let body = response.body().cloned().unwrap_or_default();
                SavedResponse::new(status, headers, body, None)
            }
            _ => response.clone(),
        };
        self.inner.complete(claim, &response, retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.released.lock().unwrap().insert(*claim.key());
        let claim = &self.checked(claim).await?;
        match self.flaw {
            Flaw::NeverReleases => Ok(()),
            Flaw::ReleasesCompleted => self.inner.forget(claim.key()).await.map(drop),
            _ => self.inner.release(claim).await,
        }
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        let claim = &self.checked(claim).await?;
        match self.flaw {
            Flaw::AbandonsByLapse => Ok(()),
            Flaw::ForgetsOnAbandon => self.inner.forget(claim.key()).await.map(drop),
            _ => self.inner.abandon(claim, retention).await,
        }
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        let mut record = self.inner.inspect(key).await?;
        if let (Flaw::ShowsLapsedAsRunning, Some(record)) = (self.flaw, &mut record)
            && matches!(record.state, RecordState::Unknown)
        {
            record.state = RecordState::in_flight(Duration::from_secs(1));
        }
        Ok(record.filter(|_| !self.has(Flaw::ShowsNothing)))
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        let forgotten = self.inner.forget(key).await?;
        Ok(forgotten && !self.has(Flaw::SaysItForgotNothing))
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        if self.has(Flaw::PurgesEverything) {
            let keys: Vec<_> = self.claims().keys().copied().collect();
            for key in keys {
                self.inner.forget(&key).await?;
            }
        }
        self.inner.purge_expired(limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        match self.flaw {
            Flaw::IsDown => Err(StoreErrorKind::Unavailable.into()),
            _ => self.inner.ping().await,
        }
    }

    fn kind(&self) -> StoreKind {
        match self.flaw {
            Flaw::NamesTheWrongKind => StoreKind::Transaction,
            _ => self.inner.kind(),
        }
    }

    fn steps(&self) -> Option<&dyn Steps> {
        Some(self)
    }

    fn fingerprint(&self, identity: &Identity<'_>) -> Fingerprint {
        match self.flaw {
            Flaw::SaltsAnew => {
                let mut digest = [0; 32];
                digest[..16].copy_from_slice(Nonce::random().as_bytes());
                Fingerprint::new(Tag::from_u16(0x8000), digest)
            }
            _ => self.inner.fingerprint(identity),
        }
    }
}
