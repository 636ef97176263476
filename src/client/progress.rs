use std::time::Duration;

use http::Response;
use tokio::time::Instant;

use super::{
    Decision, Delivery, Error, ErrorKind, GaveUp, Resumed,
    age::KeyAge,
    attempt::{Answered, End},
    pause::{asked, pause},
    settings::Settings,
};
use crate::{IdempotencyKey, ResponseBody, error::BoxError};

/// How far a call has come, and how far it may go.
pub(super) struct Progress<'a> {
    settings: &'a Settings,
    key: IdempotencyKey,
    pub(super) deadline: Instant,
    age: KeyAge,
    /// How often the request was sent.
    attempts: u32,
    /// Those of them that weren't waited for.
    counted: u32,
    /// Whether an attempt may have taken effect, and no answer told of it.
    open: bool,
}

impl<'a> Progress<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        key: IdempotencyKey,
        resumed: Option<Resumed>,
    ) -> Self {
        Self {
            settings,
            key,
            deadline: Instant::now() + settings.deadline,
            age: KeyAge::new(resumed),
            attempts: 0,
            counted: 0,
            open: resumed.is_some(),
        }
    }

    /// Counts an attempt, and tells until when it may take.
    pub(super) fn begin_attempt(&mut self) -> Result<Instant, Error> {
        // At its limit a key is too old already.
        if self.age.get() >= self.settings.max_key_age {
            let gave_up = (self.attempts > 0).then_some(GaveUp::KeyAge);
            return Err(self.fail(ErrorKind::KeyTooOld, None, gave_up));
        }
        self.attempts += 1;
        let timeout = self.settings.attempt_timeout();
        Ok(self.deadline.min(Instant::now() + timeout))
    }

    /// What the policy says, if it isn't that this is final.
    pub(super) fn note<R>(&mut self, end: &End<R>) -> Option<Decision> {
        let decision = self.settings.policy.decide(&end.seen());
        self.open = end.meaning().leaves_open(decision, self.open);
        if decision != Decision::Wait {
            self.counted += 1;
        }
        (decision != Decision::Final).then_some(decision)
    }

    /// How long to wait before the next attempt, if there may be one.
    pub(super) fn pause<R>(&self, end: &End<R>, decision: Decision) -> Result<Duration, GaveUp> {
        let settings = self.settings;
        if decision == Decision::Retry && self.counted >= settings.attempts {
            return Err(GaveUp::Attempts);
        }
        let asked = match end {
            End::Answered(answered) => asked(&answered.head.headers, answered.reading.pushback),
            End::Failed(_) | End::TimedOut => Duration::ZERO,
        };
        let pause = pause(
            asked,
            self.attempts,
            settings.first_pause,
            settings.longest_pause,
        );
        if pause >= self.deadline - Instant::now() {
            return Err(GaveUp::Deadline);
        }
        if pause >= settings.max_key_age.saturating_sub(self.age.get()) {
            return Err(GaveUp::KeyAge);
        }
        // Last, because it takes what it allows.
        match settings.budget.withdraw() {
            true => Ok(pause),
            false => Err(GaveUp::Budget),
        }
    }

    /// What the caller gets.
    pub(super) fn finish<R>(
        self,
        end: End<R>,
        gave_up: Option<GaveUp>,
    ) -> Result<Response<ResponseBody<R>>, Error> {
        match end {
            End::Answered(answered) => {
                let Answered {
                    mut head,
                    body,
                    reading,
                } = *answered;
                head.extensions.insert(Delivery {
                    key: self.key,
                    attempts: self.attempts,
                    replay: reading.replay,
                    unknown: self.open,
                    gave_up,
                });
                Ok(Response::from_parts(head, body))
            }
            End::Failed(error) => Err(self.fail(ErrorKind::Service, Some(error), gave_up)),
            End::TimedOut => Err(self.fail(ErrorKind::Timeout, None, gave_up)),
        }
    }

    /// The end of a call that had no further attempt because of this error.
    pub(super) fn error(&self, kind: ErrorKind, source: impl Into<BoxError>) -> Error {
        self.fail(kind, Some(source.into()), None)
    }

    /// The deadline came between two attempts, or before the first one.
    pub(super) fn too_late(&self) -> Error {
        self.fail(ErrorKind::Timeout, None, Some(GaveUp::Deadline))
    }

    fn fail(&self, kind: ErrorKind, source: Option<BoxError>, gave_up: Option<GaveUp>) -> Error {
        Error::new(kind, source).after(self.key.clone(), self.attempts, self.open, gave_up)
    }
}
