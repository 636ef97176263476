use std::time::Duration;

use crate::{Outcome, RecordKey};

/// What is known of one keyed request at its end, for an [observer](crate::IdempotencyLayer::with_observer).
#[derive(Clone, Debug)]
pub struct Observation {
    pub(crate) outcome: Outcome,
    pub(crate) record_key: Option<RecordKey>,
    pub(crate) attempt: Option<u32>,
    pub(crate) store_time: Duration,
    pub(crate) handler_time: Option<Duration>,
}

impl Observation {
    /// What is known of a request that came to this, if nothing else is. For tests of an observer.
    ///
    /// ```
    /// use tower_idempotency::{Observation, Outcome, RejectionKind};
    ///
    /// fn needs_a_look(observation: &Observation) -> bool {
    ///     observation.outcome() == Outcome::Refused(RejectionKind::OutcomeUnknown)
    /// }
    /// assert!(needs_a_look(&Observation::new(Outcome::Refused(RejectionKind::OutcomeUnknown))));
    /// assert!(!needs_a_look(&Observation::new(Outcome::Saved)));
    /// ```
    #[must_use]
    pub fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            record_key: None,
            attempt: None,
            store_time: Duration::ZERO,
            handler_time: None,
        }
    }

    /// The same, of this record.
    #[must_use]
    pub fn with_record_key(mut self, record_key: RecordKey) -> Self {
        self.record_key = Some(record_key);
        self
    }

    /// What became of it.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The name of the record; none for a request that was refused before its key was known. Its `Debug` form is short and
    /// tells nothing of the key.
    #[must_use]
    pub fn record_key(&self) -> Option<&RecordKey> {
        self.record_key.as_ref()
    }

    /// The attempt of the run: 1 for the first one under the key, one more with each takeover. None if the handler didn't run.
    #[must_use]
    pub fn attempt(&self) -> Option<u32> {
        self.attempt
    }

    /// How long the request waited for the store in total. What the store does while the handler runs (renewals, notes of
    /// steps), or after the answer, doesn't count.
    #[must_use]
    pub fn store_time(&self) -> Duration {
        self.store_time
    }

    /// How long the handler ran, until its response (its body included, if it is saved) or its limit; the sum, if it
    /// [ran again](crate::IdempotencyLayer::with_transaction_retries). None if it didn't run, or was dropped with its caller.
    #[must_use]
    pub fn handler_time(&self) -> Option<Duration> {
        self.handler_time
    }
}
