use std::time::Duration;

use super::Nonce;

/// On what terms a key is to be claimed.
#[derive(Clone, Debug)]
pub struct Terms {
    nonce: Nonce,
    lease: Duration,
    retention: Duration,
    takeover: Takeover,
    run_limit: Duration,
}

impl Terms {
    /// Terms with the default [`Takeover`] and a run limit of one lease.
    #[must_use]
    pub fn new(nonce: Nonce, lease: Duration, retention: Duration) -> Self {
        Self {
            nonce,
            lease,
            retention,
            takeover: Takeover::default(),
            run_limit: lease,
        }
    }

    /// What to do with a claim whose lease ended without an outcome.
    #[must_use]
    pub fn with_takeover(mut self, takeover: Takeover) -> Self {
        self.takeover = takeover;
        self
    }

    /// The longest that the claim will be held, settling included.
    #[must_use]
    pub fn with_run_limit(mut self, run_limit: Duration) -> Self {
        self.run_limit = run_limit;
        self
    }

    /// Whose claim it will be.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// How long the claim lasts unrenewed.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// How long an unsettled record is kept after the end of its lease.
    #[must_use]
    pub fn retention(&self) -> Duration {
        self.retention
    }

    /// What to do with a claim whose lease ended without an outcome.
    #[must_use]
    pub fn takeover(&self) -> Takeover {
        self.takeover
    }

    /// The longest that the claim will be held, settling included; a store may end its own transaction then.
    #[must_use]
    pub fn run_limit(&self) -> Duration {
        self.run_limit
    }
}

/// What happens to a key whose run ended without a known outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Takeover {
    /// Every retry is answered 409 `outcome_unknown` until the retention ends or an operator forgets the key:
    /// the effect happens at most once.
    #[default]
    Refuse,
    /// The next retry runs the handler again, which sees attempt 2: the effect happens at least once.
    RunAgain,
}
