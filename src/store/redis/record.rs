//! The bytes of a record, integers big-endian:
//!
//! ```text
//! format: u8 = 1 | state: u8 | attempt: u32 | fence: u64 | retention: u64 ms | fingerprint: tag u16, 32 bytes | nonce: 16 bytes | response
//! ```
//!
//! Until the run is completed, the notes of its steps are in the place of the response, where they can be appended. The scripts read them too.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};

use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind, Tag,
    store::{Claim, Nonce, Record, RecordState, Reservation, Terms},
};

/// What goes before the response.
pub(super) const HEAD: usize = 72;

const FORMAT: u8 = 1;
const RUNNING: u8 = 0;
const COMPLETED: u8 = 1;
const ABANDONED: u8 = 2;

/// When to ask again about a claim that lasts longer.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A record as the server has it.
pub(super) struct Stored {
    state: u8,
    attempt: u32,
    fence: u64,
    retention: Duration,
    fingerprint: Fingerprint,
    nonce: Nonce,
    response: Bytes,
    /// What it has left to live.
    left: Duration,
}

impl Stored {
    /// The record, by what the scripts tell of it. What somebody has freed of its expiry (`left` is negative) lives for its
    /// retention, seen from any moment.
    pub(super) fn read(left: i64, record: Vec<u8>) -> Result<Self, StoreError> {
        let mut bytes = Bytes::from(record);
        let mut stored = Self::decode(&mut bytes).ok_or_else(|| {
            StoreError::new(StoreErrorKind::Other, "a record of the store can't be read")
        })?;
        stored.left = u64::try_from(left).map_or(stored.retention, Duration::from_millis);
        Ok(stored)
    }

    fn decode(bytes: &mut Bytes) -> Option<Self> {
        if bytes.try_get_u8().ok()? != FORMAT {
            return None;
        }
        Some(Self {
            state: bytes
                .try_get_u8()
                .ok()
                .filter(|state| *state <= ABANDONED)?,
            attempt: bytes.try_get_u32().ok()?,
            fence: bytes.try_get_u64().ok()?,
            retention: Duration::from_millis(bytes.try_get_u64().ok()?),
            fingerprint: fingerprint(bytes)?,
            nonce: Nonce::from_bytes(array(bytes)?),
            response: bytes.split_off(0),
            left: Duration::ZERO,
        })
    }

    /// The claim that it records.
    pub(super) fn claim(&self, key: &RecordKey) -> Claim {
        Claim::new(*key, self.fingerprint, self.nonce, self.attempt, self.fence)
    }

    /// Whether it is the claim of a run under this nonce, unsettled.
    pub(super) fn is_claim_of(&self, nonce: Nonce, fingerprint: &Fingerprint) -> bool {
        self.state == RUNNING && self.nonce == nonce && self.fingerprint == *fingerprint
    }

    /// What a request with this fingerprint gets that couldn't claim the key.
    pub(super) fn answer(&self, fingerprint: &Fingerprint) -> Result<Reservation, StoreError> {
        if self.fingerprint != *fingerprint {
            return Ok(Reservation::Mismatch(self.fingerprint));
        }
        Ok(match self.record()?.state {
            RecordState::Completed(response) => Reservation::Replay {
                response,
                expires_in: self.left,
            },
            RecordState::InFlight { lease_left } => Reservation::InFlight {
                retry_after: lease_left.min(ASK_AGAIN),
            },
            RecordState::Unknown => Reservation::Unknown,
        })
    }

    pub(super) fn is_completed(&self) -> bool {
        self.state == COMPLETED
    }

    /// The time of the claim, by the server's clock.
    pub(super) fn claimed(&self) -> Duration {
        Duration::from_micros(self.fence)
    }

    /// The record as an operator sees it.
    pub(super) fn record(&self) -> Result<Record, StoreError> {
        let lease_left = self.left.saturating_sub(self.retention);
        let state = match self.state {
            COMPLETED => RecordState::Completed(SavedResponse::decode(self.response.clone())?),
            RUNNING if !lease_left.is_zero() => RecordState::InFlight { lease_left },
            _ => RecordState::Unknown,
        };
        let (attempt, fence) = (self.attempt, self.fence);
        Ok(Record::new(
            self.fingerprint,
            attempt,
            fence,
            state,
            self.left,
        ))
    }
}

/// The record of a first claim, without its fence, which the server's clock gives.
pub(super) fn unfenced(fingerprint: &Fingerprint, terms: &Terms) -> Vec<u8> {
    let (nonce, retention) = (terms.nonce(), terms.retention());
    let claim = Claim::new(RecordKey::from_bytes([0; 32]), *fingerprint, nonce, 1, 0);
    head(RUNNING, &claim, retention, 0)
}

/// The record of a claim that is settled, with a response or without an outcome.
pub(super) fn settled(
    claim: &Claim,
    response: Option<&SavedResponse>,
    retention: Duration,
) -> Vec<u8> {
    let Some(response) = response.map(SavedResponse::encode) else {
        return head(ABANDONED, claim, retention, 0);
    };
    let mut bytes = head(COMPLETED, claim, retention, response.len());
    bytes.put_slice(&response);
    bytes
}

/// What goes before the response, with room for one of this length.
fn head(state: u8, claim: &Claim, retention: Duration, response: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + response);
    bytes.put_u8(FORMAT);
    bytes.put_u8(state);
    bytes.put_u32(claim.attempt());
    bytes.put_u64(claim.fence());
    bytes.put_u64(millis(retention));
    bytes.put_u16(claim.fingerprint().tag().to_u16());
    bytes.put_slice(claim.fingerprint().digest());
    bytes.put_slice(claim.nonce().as_bytes());
    bytes
}

/// Milliseconds, the unit of the server's clock: rounded up, so that nothing is over before its time.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn fingerprint(bytes: &mut Bytes) -> Option<Fingerprint> {
    let tag = Tag::from_u16(bytes.try_get_u16().ok()?);
    Some(Fingerprint::new(tag, array(bytes)?))
}

fn array<const N: usize>(bytes: &mut Bytes) -> Option<[u8; N]> {
    let mut array = [0; N];
    bytes.try_copy_to_slice(&mut array).ok()?;
    Some(array)
}
