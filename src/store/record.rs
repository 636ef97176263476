use std::time::Duration;

use super::Claim;
use crate::{Fingerprint, SavedResponse};

/// What [`reserve`](super::Store::reserve) found.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reservation {
    /// The key is claimed: run the handler, then settle.
    Acquired(Claim),
    /// The key is done, with the same fingerprint: answer from the record.
    #[non_exhaustive]
    Replay {
        /// May be a [tombstone](SavedResponse::is_tombstone).
        response: SavedResponse,
        /// After this time the record counts as absent.
        expires_in: Duration,
    },
    /// Another run has the key.
    #[non_exhaustive]
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The record has another fingerprint, this one. Compared before everything else.
    Mismatch(Fingerprint),
    /// A run ended without a known outcome, and the terms refuse a takeover.
    Unknown,
}

impl Reservation {
    /// The [answer](Self::Replay) from a record that expires after this time.
    #[must_use]
    pub fn replay(response: SavedResponse, expires_in: Duration) -> Self {
        Self::Replay {
            response,
            expires_in,
        }
    }

    /// Another run [has the key](Self::InFlight): ask again after this time.
    #[must_use]
    pub fn in_flight(retry_after: Duration) -> Self {
        Self::InFlight { retry_after }
    }
}

/// What a store knows of one key, as [`inspect`](super::Store::inspect) tells it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Record {
    /// The fingerprint of the request that claimed the key.
    pub fingerprint: Fingerprint,
    /// The attempt number of the last claim.
    pub attempt: u32,
    /// The fence of the last claim.
    pub fence: u64,
    /// How it stands.
    pub state: RecordState,
    /// After this time the record counts as absent.
    pub expires_in: Duration,
}

impl Record {
    /// A record as a store read it.
    #[must_use]
    pub fn new(
        fingerprint: Fingerprint,
        attempt: u32,
        fence: u64,
        state: RecordState,
        expires_in: Duration,
    ) -> Self {
        Self {
            fingerprint,
            attempt,
            fence,
            state,
            expires_in,
        }
    }
}

/// How a [`Record`] stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RecordState {
    /// A run has the key until its lease ends.
    #[non_exhaustive]
    InFlight {
        /// What is left of the lease.
        lease_left: Duration,
    },
    /// Done; the response may be a [tombstone](SavedResponse::is_tombstone).
    Completed(SavedResponse),
    /// A run ended, or its lease did, without a known outcome.
    Unknown,
}

impl RecordState {
    /// A run has [the key](Self::InFlight), with this much of its lease left.
    #[must_use]
    pub fn in_flight(lease_left: Duration) -> Self {
        Self::InFlight { lease_left }
    }
}
