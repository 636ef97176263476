use std::time::Duration;

use tokio::time::Instant;
use tower_idempotency::{
    Fingerprint, RecordKey,
    store::{Claim, Reservation, Takeover, Terms},
};

use crate::entry::{Entry, State};

/// Claims the key, or tells why not. The order matters: another request is a mismatch in whatever state the entry is,
/// and nothing is taken over before that is known.
pub(crate) fn reserve(
    entry: &mut Option<Entry>,
    key: &RecordKey,
    fingerprint: &Fingerprint,
    terms: &Terms,
    clock: u64,
) -> Reservation {
    let (mut attempt, mut fence) = (1, clock);
    if let Some(Entry {
        claim,
        state,
        expires,
    }) = entry
    {
        if claim.fingerprint() != fingerprint {
            return Reservation::Mismatch(*claim.fingerprint());
        }
        match state {
            State::Completed(response) => {
                return Reservation::replay(response.clone(), *expires - Instant::now());
            }
            // The caller had no answer and asks again: the claim is its own.
            State::Running { .. } if claim.nonce() == terms.nonce() => {
                (attempt, fence) = (claim.attempt(), claim.fence());
            }
            State::Running { lease_end, .. } if *lease_end > Instant::now() => {
                return Reservation::in_flight(Duration::from_secs(1));
            }
            State::Running { .. } | State::Abandoned if terms.takeover() == Takeover::Refuse => {
                return Reservation::Unknown;
            }
            State::Running { .. } | State::Abandoned => {
                (attempt, fence) = (claim.attempt() + 1, clock.max(claim.fence() + 1));
            }
        }
    }
    let claim = Claim::new(*key, *fingerprint, terms.nonce(), attempt, fence);
    *entry = Some(Entry::running(
        claim.clone(),
        terms.lease(),
        terms.retention(),
    ));
    Reservation::Acquired(claim)
}
