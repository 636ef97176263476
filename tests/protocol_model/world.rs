//! Three requests with one key, what each may do next, and what must never become of it.

use crate::naive::{self, Answer, LEASE, Slot, State};

pub(crate) const REQUESTS: usize = 3;

/// How many attempts are looked at.
const ATTEMPTS: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// Whether the terms are `RunAgain`.
    pub(crate) run_again: bool,
    pub(crate) slot: Slot,
    pub(crate) requests: [Request; REQUESTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    phase: Phase,
    /// Whether its handler has charged the card.
    effect: bool,
    /// The request whose first attempt this one's claim goes back to, by takeovers.
    origin: usize,
    attempt: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// It did not come yet.
    ToCome,
    /// It asks for the key; it may have got it, if the answer was lost.
    Asking,
    Running,
    /// It sent this, and the answer was lost: it may only send the same again.
    Settling(Call),
    Answered,
    /// Its process died, so many ticks ago (a lease at most).
    Dead(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Reserve,
    Renew,
    Complete,
    Release,
    Abandon,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A request calls the store; the answer arrives, or is lost.
    Call {
        request: usize,
        call: Call,
        answered: bool,
    },
    Effect(usize),
    Die(usize),
    Tick,
    Purge,
}

impl World {
    pub(crate) fn new(run_again: bool) -> Self {
        let request = |number| Request {
            phase: Phase::ToCome,
            effect: false,
            origin: number,
            attempt: 0,
        };
        Self {
            run_again,
            slot: None,
            requests: std::array::from_fn(request),
        }
    }

    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut actions = vec![Action::Tick, Action::Purge];
        for (number, request) in self.requests.iter().enumerate() {
            let calls: &[Call] = match request.phase {
                // They are alike, so it is enough to let them come in one order.
                Phase::ToCome if number > 0 && self.requests[number - 1].phase == Phase::ToCome => {
                    &[]
                }
                Phase::ToCome | Phase::Asking if self.is_worn_out(number) => &[],
                Phase::ToCome | Phase::Asking => &[Call::Reserve],
                Phase::Running if request.effect => &[Call::Renew, Call::Complete, Call::Abandon],
                Phase::Running => &[Call::Renew, Call::Release, Call::Abandon],
                Phase::Settling(Call::Complete) => &[Call::Complete],
                Phase::Settling(Call::Release) => &[Call::Release],
                Phase::Settling(_) => &[Call::Abandon],
                Phase::Answered | Phase::Dead(_) => &[],
            };
            for &call in calls {
                for answered in [true, false] {
                    if !answered && !self.loses_answers_to(call) {
                        continue;
                    }
                    actions.push(Action::Call {
                        request: number,
                        call,
                        answered,
                    });
                }
            }
            if request.phase == Phase::Running && !request.effect {
                actions.push(Action::Effect(number));
            }
            let dies = matches!(
                request.phase,
                Phase::Asking | Phase::Running | Phase::Settling(_)
            );
            if dies && !self.run_again {
                actions.push(Action::Die(number));
            }
        }
        actions
    }

    /// A lost answer to a renewal changes nothing for the one who asked. And to keep `RunAgain`, which has far more states,
    /// within seconds, it goes without those lost answers, and those deaths, that `Refuse` has met already.
    fn loses_answers_to(&self, call: Call) -> bool {
        match call {
            Call::Reserve | Call::Complete => true,
            Call::Renew => false,
            Call::Release | Call::Abandon => !self.run_again,
        }
    }

    /// Requests could take a key from each other for ever, if no answer ever arrived.
    fn is_worn_out(&self, number: usize) -> bool {
        self.slot
            .is_some_and(|record| record.attempt == ATTEMPTS && record.owner != number)
    }

    /// Takes the action, and returns what the store answered if it was called.
    pub(crate) fn act(&mut self, action: Action) -> Option<Answer> {
        let answer = self.take(action);
        self.forget_what_cannot_matter();
        answer
    }

    fn take(&mut self, action: Action) -> Option<Answer> {
        match action {
            Action::Call {
                request,
                call,
                answered,
            } => {
                let answer = self.call(request, call);
                self.advance(request, call, answer, answered);
                return Some(answer);
            }
            Action::Effect(request) => self.requests[request].effect = true,
            Action::Die(request) => self.requests[request].phase = Phase::Dead(0),
            Action::Purge => {}
            Action::Tick => {
                naive::tick(&mut self.slot);
                for request in &mut self.requests {
                    if let Phase::Dead(ticks) = &mut request.phase {
                        *ticks = LEASE.min(*ticks + 1);
                    }
                }
            }
        }
        None
    }

    /// Makes states equal that have the same future.
    fn forget_what_cannot_matter(&mut self) {
        let owner = self.slot.map(|record| record.owner);
        for (number, request) in self.requests.iter_mut().enumerate() {
            if matches!(request.phase, Phase::Answered | Phase::Dead(LEASE))
                && owner != Some(number)
            {
                request.phase = Phase::Answered;
                request.attempt = 0;
                if !request.effect {
                    request.origin = number;
                }
            }
            if self.run_again {
                // Only `Refuse` promises anything about the effects of attempts that follow each other.
                request.origin = number;
            }
        }
    }

    /// What must hold in every state.
    pub(crate) fn check(&self) {
        if let Some(record) = self.slot {
            let in_flight = matches!(record.state, State::Running { lease: 1.. });
            let owner_died = self.requests[record.owner].phase == Phase::Dead(LEASE);
            assert!(
                !(in_flight && owner_died),
                "in flight beyond the lease of a dead owner: {self:?}"
            );
        }
        for origin in 0..REQUESTS {
            let same_key_and_retention =
                |request: &&Request| request.effect && request.origin == origin;
            let effects = self.requests.iter().filter(same_key_and_retention).count();
            assert!(
                self.run_again || effects <= 1,
                "two effects under Refuse: {self:?}"
            );
        }
    }

    /// What must hold between a state and the next.
    pub(crate) fn check_step(&self, action: Action, answer: Option<Answer>, next: &Self) {
        let (Some(before), Some(answer)) = (self.slot, answer) else {
            return;
        };
        if before.state == State::Completed {
            assert_eq!(
                next.slot,
                Some(before),
                "a saved response was changed by {action:?}"
            );
        }
        if let Action::Call { request, call, .. } = action
            && call != Call::Reserve
            && before.owner != request
        {
            assert_eq!(
                next.slot,
                Some(before),
                "a lost claim was written by {action:?}"
            );
            assert_eq!(answer, Answer::LostClaim);
        }
    }

    fn call(&mut self, number: usize, call: Call) -> Answer {
        let attempt = self.requests[number].attempt;
        match call {
            Call::Reserve => self.reserve(number),
            Call::Renew => naive::renew(&mut self.slot, number),
            Call::Complete => naive::settle(&mut self.slot, number, attempt, State::Completed),
            Call::Release => naive::release(&mut self.slot, number),
            Call::Abandon => naive::settle(&mut self.slot, number, attempt, State::Abandoned),
        }
    }

    /// Reserves, and notes where the claim goes back to.
    fn reserve(&mut self, number: usize) -> Answer {
        let taken_from = self.slot.map(|record| record.owner);
        let answer = naive::reserve(&mut self.slot, number, self.run_again);
        if let Answer::Acquired(attempt) = answer {
            self.requests[number].attempt = attempt;
            self.requests[number].origin =
                taken_from.map_or(number, |previous| self.requests[previous].origin);
        }
        answer
    }

    fn advance(&mut self, number: usize, call: Call, answer: Answer, answered: bool) {
        let phase = &mut self.requests[number].phase;
        *phase = match (call, answer, answered) {
            (Call::Renew, ..) => Phase::Running,
            (Call::Reserve, Answer::Acquired(_), true) => Phase::Running,
            (Call::Reserve, Answer::Replay(_), true) => Phase::Answered,
            (Call::Reserve, ..) => Phase::Asking,
            (_, _, true) => Phase::Answered,
            (_, _, false) => Phase::Settling(call),
        };
    }
}
