use std::{sync::Arc, time::Duration};

use http::{HeaderName, Method};
use tower_layer::Layer;

use super::{IdempotentRetry, RetryPolicy, budget::Budget, settings::Settings};

/// Wraps a client so that each call has one idempotency key, and is retried with it.
///
/// The client is a `Service<Request<RequestBody<B>>>`, for the body `B` of the caller's requests, and `Clone`, `Send` and `'static`. Its
/// response has any body, its error any type that becomes a boxed `Error + Send + Sync`. For one that takes a body of its own, such as
/// tonic's, put a `map_request` below the layer.
///
/// Clones, and the services that they make, share the [retry budget](Self::with_retry_budget).
#[derive(Clone, Debug, Default)]
pub struct IdempotentRetryLayer {
    settings: Settings,
}

impl IdempotentRetryLayer {
    /// A layer with the [`defaults`](super::defaults).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// Which requests engage, and their key.
impl IdempotentRetryLayer {
    /// The header that the key is sent in (default: `Idempotency-Key`).
    ///
    /// A key of the caller's wins: this header, sent as it is, or an [`IdempotencyKey`](crate::IdempotencyKey) in the request's
    /// extensions. Otherwise the key is [random](crate::IdempotencyKey::random).
    #[must_use]
    pub fn with_header(mut self, name: HeaderName) -> Self {
        self.settings.header = name;
        self
    }

    /// Sends keys quoted, `"8e03978e-…"`, as the IETF draft has it. By default they are bare, which is what most servers read, ours
    /// reads both.
    #[must_use]
    pub fn quote_keys(mut self) -> Self {
        self.settings.quoted = true;
        self
    }

    /// The methods that get a key and are retried (default: POST, PUT, PATCH, DELETE). Safe methods always pass through.
    #[must_use]
    pub fn with_methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.settings.methods = methods.into_iter().collect();
        self
    }

    /// The gRPC paths, as in `/payments.Payments/Charge`, that are unary calls (default: none). Other gRPC requests pass through.
    ///
    /// The wire doesn't tell a unary call from a stream, and a stream's requests can't be collected.
    #[must_use]
    pub fn with_grpc_unary(
        mut self,
        is_unary: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.grpc_unary = Some(Arc::new(is_unary));
        self
    }

    /// The largest request body that is collected, to be sent again, in bytes (default: 1 MiB).
    ///
    /// A larger one is streamed and gets its key, but is sent once ([`GaveUp::Body`](super::GaveUp::Body)).
    #[must_use]
    pub fn with_request_body_limit(mut self, limit: usize) -> Self {
        self.settings.request_limit = limit;
        self
    }
}

/// Answers, and which of them are retried.
impl IdempotentRetryLayer {
    /// What is retried (default: [`RetryPolicy::default`]).
    #[must_use]
    pub fn with_policy(mut self, policy: RetryPolicy) -> Self {
        self.settings.policy = policy;
        self
    }

    /// The largest response body that is collected before the caller gets the response, in bytes (default: 1 MiB; 0: none), so that an
    /// answer that breaks off in the middle is retried like one that never came.
    ///
    /// A larger one, one that takes longer than 5 s or the rest of the attempt's time, and `text/event-stream` are streamed: what was read of
    /// them, and then the rest. Should that break off, the caller can resume the call.
    #[must_use]
    pub fn with_response_body_limit(mut self, limit: usize) -> Self {
        self.settings.response_limit = limit;
        self
    }

    /// The header by which the server marks a replay with `true` (default: `Idempotent-Replayed`).
    #[must_use]
    pub fn with_replay_marker(mut self, name: HeaderName) -> Self {
        self.settings.replay_marker = name;
        self
    }
}

/// Time and numbers.
impl IdempotentRetryLayer {
    /// How often a request is sent at most (default: 5, which the [pauses](Self::with_backoff) between them spread over 3 s at most, unless
    /// the server asks for longer ones).
    ///
    /// Answers that say that the operation is [still running](super::Decision::Wait) don't count: waiting for it is what the key is
    /// for. The deadline ends it.
    #[must_use]
    pub fn with_attempts(mut self, attempts: u32) -> Self {
        self.settings.attempts = attempts;
        self
    }

    /// How long an attempt may take, until the head of its answer has come (default: 10 s, or the deadline if that is shorter).
    ///
    /// Make it longer than the server's slowest honest answer: the operation goes on after it, and each attempt that comes meanwhile is told
    /// that it is in flight.
    #[must_use]
    pub fn with_attempt_timeout(mut self, timeout: Duration) -> Self {
        self.settings.attempt_timeout = Some(timeout);
        self
    }

    /// How long a call may take in all (default: 60 s), from its beginning to the head of its last answer, with the collection of the request's
    /// body, all attempts, and the pauses between them.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// The bounds of the random pauses: `first` before the first retry (default: 200 ms), doubled with each one, and never above
    /// `longest` (default: 10 s). What the server asks for is added.
    #[must_use]
    pub fn with_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.first_pause = first;
        self.settings.longest_pause = longest;
        self
    }

    /// How old a key may be at most when it is sent (default: 23 h), counted from the beginning of the call, or as [`Resumed`](super::Resumed) says.
    /// The time for which the machine is suspended meanwhile counts too.
    ///
    /// It must be shorter than the time for which the server keeps its keys, by an attempt's timeout at least: afterwards the key is new
    /// to it, and the operation runs again. An older key is [not sent](super::ErrorKind::KeyTooOld).
    #[must_use]
    pub fn with_max_key_age(mut self, age: Duration) -> Self {
        self.settings.max_key_age = age;
        self
    }

    /// How many retries all calls together may make, over ten seconds: so many for each second (default: 10), and this share of the
    /// calls (default: 0.2, one retry for five calls) besides. So an outage doesn't multiply the load.
    #[must_use]
    pub fn with_retry_budget(mut self, per_second: u32, share: f32) -> Self {
        self.settings.budget = Budget::new(per_second, share);
        self
    }
}

impl<S> Layer<S> for IdempotentRetryLayer {
    type Service = IdempotentRetry<S>;

    /// Wraps the client.
    ///
    /// # Panics
    ///
    /// If the settings contradict each other: a time of zero or above ten years, an attempt timeout above the deadline, a first
    /// pause above the longest, no attempt, a safe method among the methods or none at all, a connection header for the key or
    /// the replay marker, or a budget's share below 0 or above 1000. The message names the settings.
    fn layer(&self, inner: S) -> IdempotentRetry<S> {
        self.settings.validate();
        IdempotentRetry::new(inner, self.settings.clone())
    }
}
