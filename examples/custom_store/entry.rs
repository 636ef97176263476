use std::time::Duration;

use tokio::time::Instant;
use tower_idempotency::{
    SavedResponse, StoreError, StoreErrorKind,
    store::{Claim, Record, RecordState},
};

/// What is kept under one key.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The last one.
    pub(crate) claim: Claim,
    pub(crate) state: State,
    pub(crate) expires: Instant,
}

#[derive(Debug)]
pub(crate) enum State {
    Running {
        lease_end: Instant,
        retention: Duration,
    },
    Completed(SavedResponse),
    Abandoned,
}

impl Entry {
    pub(crate) fn running(claim: Claim, lease: Duration, retention: Duration) -> Self {
        let lease_end = Instant::now() + lease;
        Self {
            claim,
            state: State::Running {
                lease_end,
                retention,
            },
            expires: lease_end + retention,
        }
    }

    pub(crate) fn is_expired(&self) -> bool {
        self.expires <= Instant::now()
    }

    /// Also after the lease, if nobody took over.
    pub(crate) fn renew(
        entry: &mut Option<Self>,
        claim: &Claim,
        lease: Duration,
    ) -> Result<(), StoreError> {
        match entry {
            Some(Self {
                claim: last,
                state: State::Running { retention, .. },
                ..
            }) if last.nonce() == claim.nonce() => {
                *entry = Some(Self::running(claim.clone(), lease, *retention));
                Ok(())
            }
            _ => Err(StoreErrorKind::LostClaim.into()),
        }
    }

    /// Ends a claim, in this state or without a trace. An entry that was lost comes back; one that is another claim's stays.
    pub(crate) fn settle(
        entry: &mut Option<Self>,
        claim: &Claim,
        end: Option<State>,
        retention: Duration,
    ) -> Result<(), StoreError> {
        if let Some(last) = entry {
            let own = last.claim.nonce() == claim.nonce();
            match (&last.state, &end) {
                (State::Running { .. }, _) if own => {}
                (State::Completed(_), Some(State::Completed(_)))
                | (State::Abandoned, Some(State::Abandoned))
                    if own =>
                {
                    return Ok(());
                }
                _ => return Err(StoreErrorKind::LostClaim.into()),
            }
        }
        *entry = end.map(|state| Self {
            claim: claim.clone(),
            state,
            expires: Instant::now() + retention,
        });
        Ok(())
    }

    pub(crate) fn record(&self) -> Record {
        let now = Instant::now();
        let state = match &self.state {
            State::Running { lease_end, .. } if *lease_end > now => {
                RecordState::in_flight(*lease_end - now)
            }
            State::Completed(response) => RecordState::Completed(response.clone()),
            State::Running { .. } | State::Abandoned => RecordState::Unknown,
        };
        let (claim, expires_in) = (&self.claim, self.expires - now);
        Record::new(
            *claim.fingerprint(),
            claim.attempt(),
            claim.fence(),
            state,
            expires_in,
        )
    }
}
