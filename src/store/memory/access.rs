use std::{sync::MutexGuard, time::Duration};

use super::{
    budget::Budget,
    entry::{Entry, Moment, State},
    owned::owned,
    shard::{Shard, Step, first_due},
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{Claim, Record, Reservation, Takeover, Terms},
};

/// How many due entries a call takes off the queue: more than it puts there, so that a backlog shrinks.
const SWEEP: usize = 3;

/// When a duplicate should ask again, unless the lease ends before.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A locked shard at one moment: here are the rules of the protocol.
pub(super) struct Access<'a> {
    shard: MutexGuard<'a, Shard>,
    budget: &'a Budget,
    now: Moment,
}

impl<'a> Access<'a> {
    pub(super) fn new(shard: MutexGuard<'a, Shard>, budget: &'a Budget, now: Moment) -> Self {
        Self { shard, budget, now }
    }

    pub(super) fn now(&self) -> Moment {
        self.now
    }

    pub(super) fn budget(&self) -> &Budget {
        self.budget
    }

    pub(super) fn shard(&self) -> &Shard {
        &self.shard
    }

    pub(super) fn shard_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }

    /// All records, expired ones included.
    pub(super) fn records(&self) -> impl Iterator<Item = (&RecordKey, &Entry)> {
        self.shard.records()
    }

    /// None if there is no room for another record.
    pub(super) fn reserve(
        &mut self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Option<Reservation> {
        let now = self.now;
        let Some(entry) = self.live(key) else {
            return self.claim_new(key, fingerprint, terms);
        };
        if entry.fingerprint != *fingerprint {
            return Some(Reservation::Mismatch(entry.fingerprint));
        }
        let attempt = match &entry.state {
            State::Completed { response, expires } => {
                return Some(Reservation::Replay {
                    response: response.clone(),
                    expires_in: expires.saturating_sub(now),
                });
            }
            State::Running { .. } if entry.nonce == terms.nonce() => {
                let claim = entry.claim(key);
                return Some(self.claim_again(claim, terms));
            }
            State::Running { lease_end, .. } if *lease_end > now => {
                let retry_after = (*lease_end - now).min(RETRY_AFTER);
                return Some(Reservation::InFlight { retry_after });
            }
            State::Running { .. } | State::Abandoned { .. } => match terms.takeover() {
                Takeover::Refuse => return Some(Reservation::Unknown),
                Takeover::RunAgain => entry.attempt.saturating_add(1),
            },
        };
        let fence = self.shard.next_fence(now);
        let claim = Claim::new(*key, *fingerprint, terms.nonce(), attempt, fence);
        Some(self.claim_again(claim, terms))
    }

    pub(super) fn renew(&mut self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        match self.live(claim.key()) {
            Some(&Entry {
                nonce,
                state: State::Running { retention, .. },
                ..
            }) if nonce == claim.nonce() => {
                let state = State::running(self.now, lease, retention);
                self.set_state(claim.key(), state);
                Ok(())
            }
            _ => Err(StoreErrorKind::LostClaim.into()),
        }
    }

    /// Whether there was room for the response.
    pub(super) fn complete(
        &mut self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<bool, StoreError> {
        match self.standing(claim) {
            Standing::Completed => Ok(true),
            Standing::Abandoned | Standing::Taken => Err(StoreErrorKind::LostClaim.into()),
            standing @ (Standing::Running { .. } | Standing::Lost) => {
                if let Standing::Running { noted: true } = standing {
                    self.drop_notes(claim.key());
                }
                let has_room = self.budget.bytes.try_add(response.size());
                let state = State::Completed {
                    response: match has_room {
                        true => owned(response),
                        false => SavedResponse::tombstone(),
                    },
                    expires: self.now.saturating_add(retention),
                };
                self.settle(claim, state);
                Ok(has_room)
            }
        }
    }

    pub(super) fn release(&mut self, claim: &Claim) -> Result<(), StoreError> {
        match self.standing(claim) {
            Standing::Running { .. } => {
                self.forget(claim.key());
                Ok(())
            }
            Standing::Lost => Ok(()),
            Standing::Completed | Standing::Abandoned | Standing::Taken => {
                Err(StoreErrorKind::LostClaim.into())
            }
        }
    }

    pub(super) fn abandon(&mut self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        match self.standing(claim) {
            Standing::Abandoned => Ok(()),
            Standing::Completed | Standing::Taken => Err(StoreErrorKind::LostClaim.into()),
            Standing::Running { .. } | Standing::Lost => {
                let expires = self.now.saturating_add(retention);
                self.settle(claim, State::Abandoned { expires });
                Ok(())
            }
        }
    }

    pub(super) fn inspect(&mut self, key: &RecordKey) -> Option<Record> {
        let now = self.now;
        Some(self.live(key)?.record(now))
    }

    /// Whether the record is the claim's, and not completed.
    pub(super) fn may_note(&mut self, claim: &Claim) -> bool {
        matches!(
            self.standing(claim),
            Standing::Running { .. } | Standing::Abandoned
        )
    }

    /// Whether there was an unexpired record.
    pub(super) fn forget(&mut self, key: &RecordKey) -> bool {
        let was_there = self.live(key).is_some();
        self.remove(key);
        was_there
    }

    /// Removes expired records, `limit` at most, and tells how many.
    pub(super) fn purge(&mut self, limit: usize) -> usize {
        let mut purged = 0;
        while purged < limit {
            match self.step() {
                None => break,
                Some(Step::Expired(_)) => purged += 1,
                Some(Step::LivesOn | Step::Stale) => {}
            }
        }
        purged
    }

    /// Does a little of what [`purge`](Self::purge) does.
    pub(super) fn sweep(&mut self) {
        for _ in 0..SWEEP {
            if self.step().is_none() {
                break;
            }
        }
    }

    fn claim_new(
        &mut self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Option<Reservation> {
        if !self.budget.entries.try_add(1) {
            return None;
        }
        let fence = self.shard.next_fence(self.now);
        let claim = Claim::new(*key, *fingerprint, terms.nonce(), 1, fence);
        let due = first_due(self.now, terms.retention());
        self.shard
            .insert(key, Entry::new(&claim, running(self.now, terms), due));
        Some(Reservation::Acquired(claim))
    }

    /// Writes the claim over the unsettled record that is there.
    fn claim_again(&mut self, claim: Claim, terms: &Terms) -> Reservation {
        let state = running(self.now, terms);
        self.shard.update(claim.key(), |entry| {
            entry.nonce = claim.nonce();
            entry.attempt = claim.attempt();
            entry.fence = claim.fence();
            entry.state = state;
        });
        Reservation::Acquired(claim)
    }

    /// Writes how the claim ended, also where its record was lost. The budget already has what the response takes.
    fn settle(&mut self, claim: &Claim, state: State) {
        if self.shard.get(claim.key()).is_some() {
            return self.set_state(claim.key(), state);
        }
        self.budget.entries.add(1);
        let due = state.expires();
        self.shard
            .insert(claim.key(), Entry::new(claim, state, due));
    }

    fn set_state(&mut self, key: &RecordKey, state: State) {
        self.shard.update(key, |entry| entry.state = state);
    }

    /// How a claim stands to the record of its key.
    fn standing(&mut self, claim: &Claim) -> Standing {
        match self.live(claim.key()) {
            None => Standing::Lost,
            Some(entry) if entry.nonce != claim.nonce() => Standing::Taken,
            Some(entry) => match entry.state {
                State::Running { .. } => Standing::Running {
                    noted: entry.notes.is_some(),
                },
                State::Completed { .. } => Standing::Completed,
                State::Abandoned { .. } => Standing::Abandoned,
            },
        }
    }

    /// The record, which is removed first if it expired.
    fn live(&mut self, key: &RecordKey) -> Option<&Entry> {
        if self.shard.get(key)?.state.expires() <= self.now {
            self.remove(key);
        }
        self.shard.get(key)
    }

    fn remove(&mut self, key: &RecordKey) {
        if let Some(entry) = self.shard.remove(key) {
            self.give_back(&entry);
        }
    }

    fn step(&mut self) -> Option<Step> {
        let step = self.shard.step(self.now);
        if let Some(Step::Expired(entry)) = &step {
            self.give_back(entry);
        }
        step
    }

    fn give_back(&self, removed: &Entry) {
        self.budget.entries.subtract(1);
        self.budget.bytes.subtract(removed.bytes());
    }
}

/// How a claim stands to the record of its key.
enum Standing {
    /// Its own, unsettled, with or without a lease; and whether steps of it are noted.
    Running {
        noted: bool,
    },
    Completed,
    Abandoned,
    /// Another claim's.
    Taken,
    /// There is no unexpired record.
    Lost,
}

fn running(now: Moment, terms: &Terms) -> State {
    State::running(now, terms.lease(), terms.retention())
}
