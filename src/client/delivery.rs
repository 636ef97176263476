use crate::IdempotencyKey;

/// How a response came about. It is in the extensions of each response to a call with a key.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub(super) key: IdempotencyKey,
    pub(super) attempts: u32,
    pub(super) replay: bool,
    pub(super) unknown: bool,
    pub(super) gave_up: Option<GaveUp>,
}

impl Delivery {
    /// The key that all attempts had.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// How often the request was sent.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether the response is a replay: that of an earlier attempt, or call, with this key.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.replay
    }

    /// Whether the operation may have taken effect without this response telling of it.
    ///
    /// It is known after 2xx (gRPC: OK), a replay, or 409 `response_not_kept`: the operation is done, or answered for good.
    /// It is known after a refusal (another 4xx, a 3xx, or 503 `not_committed`, `store_full` or `store_unavailable`) that no attempt came
    /// before which may have taken effect. It is unknown after 408 or another 5xx that is no replay, after 409 `in_flight` and
    /// `outcome_unknown`, and after a refusal that followed such an answer, a timeout or a lost connection: a 401 says nothing about the
    /// attempt before it, nor does a redirect to a log-in page. It is also unknown after a gRPC answer that is streamed to
    /// the caller: its status is in the trailers.
    ///
    /// Resume it with the same [`key`](Self::key) (see [`Resumed`](super::Resumed)), or find out by other means; don't use a new key.
    #[must_use]
    pub fn outcome_is_unknown(&self) -> bool {
        self.unknown
    }

    /// Why there was no further attempt, if the policy would have made one.
    #[must_use]
    pub fn gave_up(&self) -> Option<GaveUp> {
        self.gave_up
    }
}

/// What kept a call from retrying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GaveUp {
    /// The number of [attempts](super::IdempotentRetryLayer::with_attempts) was used up.
    Attempts,
    /// The request's body is larger than the [limit](super::IdempotentRetryLayer::with_request_body_limit): it was streamed, and can't
    /// be sent again.
    Body,
    /// Too many calls were [retrying](super::IdempotentRetryLayer::with_retry_budget).
    Budget,
    /// The [deadline](super::IdempotentRetryLayer::with_deadline), against the pause that was due.
    Deadline,
    /// The key would have been [too old](super::IdempotentRetryLayer::with_max_key_age).
    KeyAge,
}
