use std::time::Duration;

use super::steps::Notes;
use crate::{
    Fingerprint, RecordKey, SavedResponse,
    store::{Claim, Nonce, Record, RecordState},
};

/// A point in time, as what had passed since 1970 by the clock that the store was made at: unlike an `Instant`, it can be added to without a panic.
pub(super) type Moment = Duration;

/// One record.
pub(super) struct Entry {
    pub(super) fingerprint: Fingerprint,
    pub(super) nonce: Nonce,
    pub(super) attempt: u32,
    pub(super) fence: u64,
    pub(super) state: State,
    /// When the shard looks at it next; never later than it expires.
    pub(super) due: Moment,
    /// Of an unsettled run. None, mostly, which takes one word.
    pub(super) notes: Option<Box<Notes>>,
}

pub(super) enum State {
    /// Until `lease_end` a run has it; after that it is there to be taken over, for `retention`.
    Running {
        lease_end: Moment,
        retention: Duration,
    },
    Completed {
        response: SavedResponse,
        expires: Moment,
    },
    Abandoned {
        expires: Moment,
    },
}

impl Entry {
    pub(super) fn new(claim: &Claim, state: State, due: Moment) -> Self {
        Self {
            fingerprint: *claim.fingerprint(),
            nonce: claim.nonce(),
            attempt: claim.attempt(),
            fence: claim.fence(),
            state,
            due,
            notes: None,
        }
    }

    pub(super) fn claim(&self, key: &RecordKey) -> Claim {
        Claim::new(*key, self.fingerprint, self.nonce, self.attempt, self.fence)
    }

    pub(super) fn record(&self, now: Moment) -> Record {
        let state = match &self.state {
            State::Running { lease_end, .. } if *lease_end > now => RecordState::InFlight {
                lease_left: *lease_end - now,
            },
            State::Running { .. } | State::Abandoned { .. } => RecordState::Unknown,
            State::Completed { response, .. } => RecordState::Completed(response.clone()),
        };
        let expires_in = self.state.expires().saturating_sub(now);
        Record::new(
            self.fingerprint,
            self.attempt,
            self.fence,
            state,
            expires_in,
        )
    }

    /// What it counts for in the budget.
    pub(super) fn bytes(&self) -> usize {
        let notes = self.notes.as_ref().map_or(0, |notes| notes.bytes());
        match &self.state {
            State::Completed { response, .. } => response.size() + notes,
            State::Running { .. } | State::Abandoned { .. } => notes,
        }
    }
}

impl State {
    pub(super) fn running(now: Moment, lease: Duration, retention: Duration) -> Self {
        Self::Running {
            lease_end: now.saturating_add(lease),
            retention,
        }
    }

    /// From then on, the record counts as absent.
    pub(super) fn expires(&self) -> Moment {
        match self {
            Self::Running {
                lease_end,
                retention,
            } => lease_end.saturating_add(*retention),
            Self::Completed { expires, .. } | Self::Abandoned { expires } => *expires,
        }
    }

    pub(super) fn is_completed(&self) -> bool {
        matches!(self, Self::Completed { .. })
    }
}
