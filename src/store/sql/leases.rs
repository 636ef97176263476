//! The lease store that all SQL backends share; a [`LeaseDialect`] is what differs.

use std::time::Duration;

use super::{Attempts, Decision, Found, State, Stored, decide};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{
        Claim, Note, Reservation, Terms,
        notes::{decoded, encoded},
    },
};

/// The statements of a lease store, each atomic and committed by itself.
pub(crate) trait LeaseDialect: Sync {
    /// Claims a key that has no row, or reads the row that it has.
    fn claim_or_read(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> impl Future<Output = Result<Looked, StoreError>> + Send;

    /// The record of a key, expired or not.
    fn read(&self, key: &RecordKey) -> impl Future<Output = Result<Found, StoreError>> + Send;

    /// The new claim over the row that was read, or as a new row; none if the row isn't that one any more.
    fn claim_over(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
        over: Option<&Stored>,
        attempt: u32,
    ) -> impl Future<Output = Result<Option<Claim>, StoreError>> + Send;

    /// Moves the lease of the claim's running row. False if it isn't there.
    fn renew_row(
        &self,
        claim: &Claim,
        lease: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Writes the end of a claim: over its own running row, over an expired one, or as a new one. False if there is another.
    fn settle_row(
        &self,
        claim: &Claim,
        settled: Settled<'_>,
        retention: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Frees the claim's running row. False if it isn't there.
    fn release_row(&self, claim: &Claim) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Appends to the notes of the claim's row. False if it isn't there, has expired or is completed.
    fn note_row(
        &self,
        claim: &Claim,
        appended: &[u8],
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The notes of that row, if it has any.
    fn row_notes(
        &self,
        claim: &Claim,
    ) -> impl Future<Output = Result<Option<RowNotes>, StoreError>> + Send;

    /// Whether the row's owner is just writing to it in this process.
    fn is_busy(&self, _stored: &Stored) -> bool {
        false
    }
}

/// What [`claim_or_read`](LeaseDialect::claim_or_read) did.
#[allow(dead_code, reason = "SQLite only reads")]
pub(crate) enum Looked {
    Claimed(Claim),
    Found(Found),
    /// A row came or went meanwhile.
    LookAgain,
}

/// The column of a row's notes, NULL if there are none.
pub(crate) type RowNotes = Option<Vec<u8>>;

/// How a claim is settled that keeps its row.
#[derive(Clone, Copy)]
pub(crate) enum Settled<'a> {
    Completed(&'a SavedResponse),
    Abandoned,
}

impl<'a> Settled<'a> {
    pub(crate) fn state(self) -> State {
        match self {
            Self::Completed(_) => State::Completed,
            Self::Abandoned => State::Abandoned,
        }
    }

    /// The response as it is stored.
    pub(crate) fn encoded(self) -> Option<Vec<u8>> {
        match self {
            Self::Completed(response) => Some(response.encode().to_vec()),
            Self::Abandoned => None,
        }
    }
}

pub(crate) async fn reserve<D: LeaseDialect>(
    dialect: &D,
    key: &RecordKey,
    fingerprint: &Fingerprint,
    terms: &Terms,
) -> Result<Reservation, StoreError> {
    let mut attempts = Attempts::default();
    loop {
        let look = dialect.claim_or_read(key, fingerprint, terms).await?;
        let reserved = match look {
            Looked::Claimed(claim) => Some(Reservation::Acquired(claim)),
            Looked::Found(found) => go_on(dialect, key, fingerprint, terms, &found).await?,
            Looked::LookAgain => None,
        };
        if let Some(reservation) = reserved {
            return Ok(reservation);
        }
        if !attempts.again().await {
            return Err(kept_away());
        }
    }
}

/// Answers from the row that was read, or claims it; none if it isn't that one any more.
async fn go_on<D: LeaseDialect>(
    dialect: &D,
    key: &RecordKey,
    fingerprint: &Fingerprint,
    terms: &Terms,
    found: &Found,
) -> Result<Option<Reservation>, StoreError> {
    let is_busy = |stored: &Stored| dialect.is_busy(stored);
    let claimed = match decide(found, fingerprint, terms, is_busy)? {
        Decision::Answer(answer) => return Ok(Some(answer)),
        Decision::Resume(stored) => {
            let claim = stored.claim(key);
            let is_renewed = dialect.renew_row(&claim, terms.lease()).await?;
            is_renewed.then_some(claim)
        }
        Decision::Claim { over, attempt } => {
            dialect
                .claim_over(key, fingerprint, terms, over, attempt)
                .await?
        }
    };
    Ok(claimed.map(Reservation::Acquired))
}

/// Others can't have come first each time.
fn kept_away() -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        "the key's row can neither be written nor read: a trigger of the table, or a policy, keeps it away",
    )
}

pub(crate) async fn renew<D: LeaseDialect>(
    dialect: &D,
    claim: &Claim,
    lease: Duration,
) -> Result<(), StoreError> {
    if dialect.renew_row(claim, lease).await? {
        return Ok(());
    }
    Err(StoreErrorKind::LostClaim.into())
}

/// Writes the end of a claim; if the row isn't the claim's to settle, it is Ok only if the same was written before.
pub(crate) async fn settle<D: LeaseDialect>(
    dialect: &D,
    claim: &Claim,
    settled: Settled<'_>,
    retention: Duration,
) -> Result<(), StoreError> {
    let mut attempts = Attempts::default();
    loop {
        if dialect.settle_row(claim, settled, retention).await? {
            return Ok(());
        }
        match dialect.read(claim.key()).await?.live() {
            Some(live) if live.nonce == claim.nonce() && live.state == settled.state() => {
                return Ok(());
            }
            Some(_) => return Err(StoreErrorKind::LostClaim.into()),
            // It expired in between, so it is the claim's to write.
            None if attempts.again().await => {}
            None => return Err(kept_away()),
        }
    }
}

pub(crate) async fn note<D: LeaseDialect>(
    dialect: &D,
    claim: &Claim,
    note: &Note,
) -> Result<(), StoreError> {
    if dialect.note_row(claim, &encoded(note)?).await? {
        return Ok(());
    }
    Err(StoreErrorKind::LostClaim.into())
}

pub(crate) async fn notes<D: LeaseDialect>(
    dialect: &D,
    claim: &Claim,
) -> Result<Vec<Note>, StoreError> {
    match dialect.row_notes(claim).await? {
        Some(notes) => decoded(&notes.unwrap_or_default()),
        None => Err(StoreErrorKind::LostClaim.into()),
    }
}

pub(crate) async fn release<D: LeaseDialect>(dialect: &D, claim: &Claim) -> Result<(), StoreError> {
    if dialect.release_row(claim).await? || dialect.read(claim.key()).await?.live().is_none() {
        return Ok(());
    }
    Err(StoreErrorKind::LostClaim.into())
}
