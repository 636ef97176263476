use std::{error::Error, fmt, sync::Arc};

use super::Answer;

/// Which attempts are followed by another one.
///
/// By default as in the [table](super#what-is-retried); for a server with other words, by a closure that falls back to it:
///
/// ```
/// use tower_idempotency::client::{AttemptEnd, Decision, IdempotentRetryLayer, RetryPolicy};
///
/// // Stripe says itself what to retry; it doesn't know our problem documents.
/// let policy = RetryPolicy::by(|end| {
///     let AttemptEnd::Answered(answer) = end else {
///         return end.by_default();
///     };
///     let said = answer.headers().get("stripe-should-retry");
///     match said.map(|value| value.as_bytes()) {
///         Some(b"true") => Decision::Retry,
///         Some(b"false") => Decision::Final,
///         _ => end.by_default(),
///     }
/// });
/// let layer = IdempotentRetryLayer::new().with_policy(policy);
/// ```
#[derive(Clone, Default)]
pub struct RetryPolicy(Option<Arc<Decide>>);

type Decide = dyn Fn(&AttemptEnd<'_>) -> Decision + Send + Sync;

impl RetryPolicy {
    /// Asks the closure, after each attempt.
    #[must_use]
    pub fn by(decide: impl Fn(&AttemptEnd<'_>) -> Decision + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(decide)))
    }

    pub(super) fn decide(&self, end: &AttemptEnd<'_>) -> Decision {
        match &self.0 {
            Some(decide) => decide(end),
            None => end.by_default(),
        }
    }
}

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "RetryPolicy::default()",
            Some(_) => "RetryPolicy::by(..)",
        })
    }
}

/// What an attempt ended with.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum AttemptEnd<'a> {
    /// A response.
    Answered(Answer<'a>),
    /// An error of the wrapped service, or of its response's body.
    Failed(&'a (dyn Error + Send + Sync + 'static)),
    /// Nothing, within the attempt's timeout.
    TimedOut,
}

impl AttemptEnd<'_> {
    /// What [`RetryPolicy::default`] decides.
    #[must_use]
    pub fn by_default(&self) -> Decision {
        match self {
            Self::Answered(answer) => answer.decision(),
            Self::Failed(_) | Self::TimedOut => Decision::Retry,
        }
    }
}

/// What follows an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Decision {
    /// Nothing: the caller gets what it ended with.
    Final,
    /// Another attempt, after a pause.
    Retry,
    /// The same, without counting this attempt: the operation is still running, and a later answer will tell its outcome.
    Wait,
}
