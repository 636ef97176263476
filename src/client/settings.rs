use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, Method, Request};

use super::{RetryPolicy, budget::Budget, defaults};
use crate::{config::LONGEST, grpc::Protocol, policy::is_connection_header};

/// What a layer was told.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) header: HeaderName,
    pub(super) quoted: bool,
    pub(super) methods: Vec<Method>,
    pub(super) grpc_unary: Option<Arc<IsUnary>>,
    pub(super) request_limit: usize,
    pub(super) response_limit: usize,
    pub(super) replay_marker: HeaderName,
    pub(super) policy: RetryPolicy,
    pub(super) attempts: u32,
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) deadline: Duration,
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
    pub(super) max_key_age: Duration,
    pub(super) budget: Budget,
}

type IsUnary = dyn Fn(&str) -> bool + Send + Sync;

impl Settings {
    /// Whether the layer has anything to do with the request.
    pub(super) fn engages<B>(&self, request: &Request<B>) -> bool {
        if !self.methods.contains(request.method()) {
            return false;
        }
        match Protocol::of(request.headers()) {
            Protocol::Http => true,
            // Waiting for the end of a stream's requests would wait for ever: the client may speak only when it was answered.
            Protocol::Grpc => self
                .grpc_unary
                .as_ref()
                .is_some_and(|unary| unary(request.uri().path())),
            // How it ended is somewhere in its body, and our server lets it pass without a look at the key.
            Protocol::GrpcLike => false,
        }
    }

    pub(super) fn attempt_timeout(&self) -> Duration {
        self.attempt_timeout
            .unwrap_or(defaults::ATTEMPT_TIMEOUT)
            .min(self.deadline)
    }

    /// Panics if the settings contradict each other, naming them.
    pub(super) fn validate(&self) {
        for (name, time) in [
            ("with_deadline", self.deadline),
            ("with_attempt_timeout", self.attempt_timeout()),
            ("with_backoff (the first)", self.first_pause),
            ("with_backoff (the longest)", self.longest_pause),
            ("with_max_key_age", self.max_key_age),
        ] {
            assert!(!time.is_zero(), "{name}: must be longer than zero");
            assert!(time <= LONGEST, "{name}: must be at most {LONGEST:?}");
        }
        if let Some(timeout) = self.attempt_timeout {
            assert!(
                timeout <= self.deadline,
                "with_attempt_timeout ({timeout:?}) must be at most with_deadline ({:?})",
                self.deadline
            );
        }
        assert!(
            self.first_pause <= self.longest_pause,
            "with_backoff: the first pause ({:?}) must be at most the longest ({:?})",
            self.first_pause,
            self.longest_pause
        );
        assert!(self.attempts > 0, "with_attempts: must be at least one");
        assert!(
            !self.methods.is_empty() && !self.methods.iter().any(Method::is_safe),
            "with_methods: at least one method, and none of the safe ones (GET, HEAD, OPTIONS, TRACE), which always pass"
        );
        for (name, header) in [
            ("with_header", &self.header),
            ("with_replay_marker", &self.replay_marker),
        ] {
            assert!(
                !is_connection_header(header, &HeaderMap::new()),
                "{name}({header}): belongs to the connection"
            );
        }
        self.budget.validate();
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            header: HeaderName::from_static("idempotency-key"),
            quoted: false,
            methods: vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE],
            grpc_unary: None,
            request_limit: defaults::BODY_LIMIT,
            response_limit: defaults::BODY_LIMIT,
            replay_marker: HeaderName::from_static("idempotent-replayed"),
            policy: RetryPolicy::default(),
            attempts: defaults::ATTEMPTS,
            attempt_timeout: None,
            deadline: defaults::DEADLINE,
            first_pause: defaults::FIRST_PAUSE,
            longest_pause: defaults::LONGEST_PAUSE,
            max_key_age: defaults::MAX_KEY_AGE,
            budget: Budget::default(),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("header", &self.header)
            .field("methods", &self.methods)
            .field("policy", &self.policy)
            .field("attempts", &self.attempts)
            .field("attempt_timeout", &self.attempt_timeout())
            .field("deadline", &self.deadline)
            .field("max_key_age", &self.max_key_age)
            .finish_non_exhaustive()
    }
}
