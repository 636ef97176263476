use std::time::Duration;

use super::{Found, State, Stored, from_micros};
use crate::{
    Fingerprint, StoreError,
    store::{Reservation, Takeover, Terms},
};

/// What a lease store does about the row that it read.
pub(crate) enum Decision<'a> {
    /// Answers, and writes nothing.
    Answer(Reservation),
    /// Hands a running claim to its own run again.
    Resume(&'a Stored),
    /// Writes a new claim, if the row is still the one that was read.
    Claim {
        over: Option<&'a Stored>,
        attempt: u32,
    },
}

/// The rules of `reserve`, in their order. `renewing` tells whether the owner of the row is just renewing it in this process.
pub(crate) fn decide<'a>(
    found: &'a Found,
    fingerprint: &Fingerprint,
    terms: &Terms,
    renewing: impl FnOnce(&Stored) -> bool,
) -> Result<Decision<'a>, StoreError> {
    let Some(live) = found.live() else {
        return Ok(Decision::Claim {
            over: found.stored.as_ref(),
            attempt: 1,
        });
    };
    if live.fingerprint != *fingerprint {
        return Ok(Decision::Answer(Reservation::Mismatch(live.fingerprint)));
    }
    let answer = match live.state {
        State::Completed => found.replay(live)?,
        State::Running if live.nonce == terms.nonce() => return Ok(Decision::Resume(live)),
        State::Running if live.lease_end > found.now => Reservation::InFlight {
            retry_after: from_micros(live.lease_end - found.now).min(ASK_AGAIN),
        },
        State::Running if renewing(live) => Reservation::InFlight {
            retry_after: ASK_AGAIN,
        },
        State::Running | State::Abandoned => match terms.takeover() {
            Takeover::Refuse => Reservation::Unknown,
            Takeover::RunAgain => {
                return Ok(Decision::Claim {
                    over: Some(live),
                    attempt: live.attempt.saturating_add(1),
                });
            }
        },
    };
    Ok(Decision::Answer(answer))
}

impl Found {
    /// What a transaction store answers from the record; none if the key is free.
    pub(crate) fn answer(
        &self,
        fingerprint: &Fingerprint,
    ) -> Result<Option<Reservation>, StoreError> {
        let Some(live) = self.live() else {
            return Ok(None);
        };
        Ok(Some(if live.fingerprint != *fingerprint {
            Reservation::Mismatch(live.fingerprint)
        } else if live.state == State::Completed {
            self.replay(live)?
        } else {
            Reservation::Unknown
        }))
    }

    fn replay(&self, completed: &Stored) -> Result<Reservation, StoreError> {
        Ok(Reservation::Replay {
            response: completed.response()?,
            expires_in: from_micros(completed.expires - self.now),
        })
    }
}

/// When to ask again about a claim that lasts longer.
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(1);
