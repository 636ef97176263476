use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use uuid::Uuid;

use super::Harness;
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind, Tag,
    store::{Claim, Nonce, Record, Reservation, Store, Takeover, Terms},
};

/// A time that a check lets pass. Long enough that a real backend's clock moves on by much more than its resolution.
pub(super) const SHORT: Duration = Duration::from_millis(300);

/// A time that no check sees the end of, on the slowest machine.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// One check: a fresh key and fingerprint, and what is expected of the store.
pub(super) struct Case {
    clause: &'static str,
    pub(super) store: Arc<dyn Store>,
    pub(super) key: RecordKey,
    pub(super) fingerprint: Fingerprint,
}

impl Case {
    pub(super) fn new(harness: &dyn Harness, clause: &'static str) -> Self {
        Self {
            clause,
            store: harness.store(),
            key: RecordKey::from_bytes(random()),
            fingerprint: random_fingerprint(),
        }
    }

    /// The same check on another key.
    pub(super) fn on(&self, key: RecordKey) -> Self {
        Self {
            clause: self.clause,
            store: Arc::clone(&self.store),
            key,
            fingerprint: self.fingerprint,
        }
    }

    pub(super) fn on_random_key(&self) -> Self {
        self.on(RecordKey::from_bytes(random()))
    }

    pub(super) async fn reserve(&self, terms: &Terms) -> Reservation {
        let reservation = self
            .store
            .reserve(&self.key, &self.fingerprint, terms)
            .await;
        self.ok("reserve", reservation)
    }

    pub(super) async fn acquire(&self, terms: &Terms) -> Claim {
        match self.reserve(terms).await {
            Reservation::Acquired(claim) => claim,
            other => self.broken("Acquired", &other),
        }
    }

    /// Completes the key, which must be free, and returns what with.
    pub(super) async fn completed(&self) -> SavedResponse {
        let claim = self.acquire(&terms()).await;
        let response = response(self.key.as_bytes());
        self.complete(&claim, &response).await;
        response
    }

    pub(super) async fn complete(&self, claim: &Claim, response: &SavedResponse) {
        self.complete_for(claim, response, LONG).await;
    }

    pub(super) async fn complete_for(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) {
        let completed = self.store.complete(claim, response, retention).await;
        self.ok("complete", completed);
    }

    pub(super) async fn release(&self, claim: &Claim) {
        self.ok("release", self.store.release(claim).await);
    }

    pub(super) async fn abandon(&self, claim: &Claim) {
        self.ok("abandon", self.store.abandon(claim, LONG).await);
    }

    pub(super) async fn is_in_flight(&self) {
        match self.reserve(&terms()).await {
            Reservation::InFlight { retry_after } => {
                self.check(
                    !retry_after.is_zero(),
                    "a retry-after above zero",
                    &retry_after,
                );
            }
            other => self.broken("InFlight", &other),
        }
    }

    pub(super) async fn is_unknown(&self) {
        match self.reserve(&terms()).await {
            Reservation::Unknown => {}
            other => self.broken("Unknown", &other),
        }
    }

    pub(super) async fn is_replayed(&self, expected: &SavedResponse) {
        self.replays(&terms(), expected).await;
    }

    /// Tells how long the record is kept yet.
    pub(super) async fn replays(&self, terms: &Terms, expected: &SavedResponse) -> Duration {
        match self.reserve(terms).await {
            Reservation::Replay {
                response,
                expires_in,
            } => {
                self.check(response == *expected, expected, &response);
                expires_in
            }
            other => self.broken("Replay", &other),
        }
    }

    /// A request with another fingerprint is told of this case's, whatever its terms.
    pub(super) async fn is_a_mismatch(&self, terms: &Terms) {
        let another = random_fingerprint();
        let reservation = self.store.reserve(&self.key, &another, terms).await;
        match self.ok("reserve", reservation) {
            Reservation::Mismatch(stored) => {
                self.check(stored == self.fingerprint, self.fingerprint, &stored);
            }
            other => self.broken("Mismatch", &other),
        }
    }

    /// The key can be claimed as if it had never been. It is left that way.
    pub(super) async fn is_free(&self) {
        let claim = self.acquire(&terms()).await;
        self.check(claim.attempt() == 1, "attempt 1", &claim);
        self.release(&claim).await;
    }

    pub(super) async fn inspect(&self) -> Option<Record> {
        self.ok("inspect", self.store.inspect(&self.key).await)
    }

    pub(super) async fn forget(&self) -> bool {
        self.ok("forget", self.store.forget(&self.key).await)
    }

    #[track_caller]
    pub(super) fn ok<T>(&self, call: &str, result: Result<T, StoreError>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => self.broken(format_args!("{call} to succeed"), &error),
        }
    }

    #[track_caller]
    pub(super) fn lost(&self, call: &str, result: Result<(), StoreError>) {
        self.fails(call, result, StoreErrorKind::LostClaim);
    }

    #[track_caller]
    pub(super) fn fails(&self, call: &str, result: Result<(), StoreError>, kind: StoreErrorKind) {
        let as_expected = matches!(&result, Err(error) if error.kind() == kind);
        self.check(
            as_expected,
            format_args!("{call} to fail with {kind:?}"),
            &result,
        );
    }

    #[track_caller]
    pub(super) fn check<T: fmt::Debug>(&self, holds: bool, expected: impl fmt::Debug, found: &T) {
        if !holds {
            self.broken(expected, found);
        }
    }

    #[track_caller]
    #[expect(
        clippy::panic,
        reason = "this is how a check tells that its clause is broken"
    )]
    pub(super) fn broken<T: fmt::Debug>(&self, expected: impl fmt::Debug, found: &T) -> ! {
        panic!(
            "clause {} is broken: expected {expected:?}, found {found:?}",
            self.clause
        )
    }
}

/// Terms of another request: a new nonce, and no end in sight.
pub(super) fn terms() -> Terms {
    terms_of(LONG, LONG)
}

/// A transaction store may end its transaction at the run limit, which is no matter of the lease here.
pub(super) fn terms_of(lease: Duration, retention: Duration) -> Terms {
    Terms::new(Nonce::random(), lease, retention).with_run_limit(LONG)
}

pub(super) fn run_again() -> Terms {
    terms().with_takeover(Takeover::RunAgain)
}

pub(super) fn response(body: &[u8]) -> SavedResponse {
    let body = Bytes::copy_from_slice(body);
    SavedResponse::new(StatusCode::CREATED, HeaderMap::new(), body, None)
}

pub(super) fn random_fingerprint() -> Fingerprint {
    Fingerprint::new(Tag::from_u16(0x0101), random())
}

fn random() -> [u8; 32] {
    let (left, right) = (Uuid::new_v4(), Uuid::new_v4());
    let mut bytes = left.into_bytes().into_iter().chain(right.into_bytes());
    std::array::from_fn(|_| bytes.next().unwrap_or_default())
}
