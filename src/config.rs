//! What a layer can be told. The defaults are in [`defaults`](crate::defaults).

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Method, Response, request::Parts};

use crate::{
    DetachedRun, Drain, FingerprintBy, KeyBy, KeyFormat, Observation, Rejection, ResponsePolicy,
    ScopeBy, defaults,
    key_by::Source,
    policy::HeaderPolicy,
    store::{StoreKind, Takeover},
};

/// What a request gets whose key is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnInFlight {
    /// 409 `in_flight` with `Retry-After` at once.
    #[default]
    Reject,
    /// Waits at most this long for the other run, then gets its answer, or runs itself if the other run was undone.
    /// A call of the store that began before is not cut short: it may take [its own limit](crate::IdempotencyLayer::with_store_call_limit) longer.
    ///
    /// A waiter holds no connection, lock or permit of the wrapped service, and ends with its caller (not where a run that is
    /// [to run again](crate::IdempotencyLayer::with_transaction_retries) waits). It is woken at once
    /// by runs of the same layer (and its clones); of other layers and processes it learns by asking the store, after
    /// 25 to 50 ms at first and every half to whole second in the end. Over the bounds
    /// ([`with_waiter_bounds`](crate::IdempotencyLayer::with_waiter_bounds)) a request is rejected at once.
    Wait(Duration),
}

/// What happens when the store can't be reached before the handler has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// 503 `store_unavailable`: a keyed request never runs unprotected.
    #[default]
    Refuse,
    /// The handler runs without protection: two requests with one key may both run.
    ///
    /// Only for lease stores, and only when the store is unreachable or over its time limit. The handler can see it in
    /// [`is_protected`](crate::IdempotencyContext::is_protected), and the layer still tries to save the response.
    RunUnprotected,
}

pub(crate) type RejectionFn = dyn Fn(&Rejection) -> Response<Bytes> + Send + Sync;
pub(crate) type UnaryFn = dyn Fn(&str) -> bool + Send + Sync;
pub(crate) type ObserverFn = dyn Fn(&Observation) + Send + Sync;
pub(crate) type SpawnFn = dyn Fn(DetachedRun) + Send + Sync;

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) scope: ScopeBy,
    pub(crate) namespace: String,
    pub(crate) key: KeyBy,
    pub(crate) key_format: KeyFormat,
    pub(crate) key_required: bool,
    pub(crate) methods: Vec<Method>,
    pub(crate) grpc_unary: Option<Arc<UnaryFn>>,
    pub(crate) fingerprint: Option<FingerprintBy>,
    pub(crate) policy: ResponsePolicy,
    pub(crate) headers: HeaderPolicy,
    pub(crate) replay_marker: HeaderName,
    pub(crate) expiry_header: Option<HeaderName>,
    pub(crate) rejection: Option<Arc<RejectionFn>>,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) takeover: Takeover,
    pub(crate) run_limit: Duration,
    pub(crate) transaction_retries: u32,
    pub(crate) store_call_limit: Option<Duration>,
    pub(crate) collect_limit: Duration,
    pub(crate) request_limit: usize,
    pub(crate) response_limit: usize,
    pub(crate) detached: bool,
    pub(crate) spawn: Option<Arc<SpawnFn>>,
    pub(crate) drain: Drain,
    pub(crate) observer: Option<Arc<ObserverFn>>,
    pub(crate) on_in_flight: OnInFlight,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) waiters_per_key: usize,
    pub(crate) waiters: usize,
    pub(crate) settlements: usize,
    pub(crate) settlement_bytes: usize,
    pub(crate) late_calls: usize,
}

impl Settings {
    pub(crate) fn new(scope: ScopeBy) -> Self {
        Self {
            scope,
            namespace: String::new(),
            key: KeyBy::default(),
            key_format: KeyFormat::default(),
            key_required: false,
            methods: vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE],
            grpc_unary: None,
            fingerprint: None,
            policy: ResponsePolicy::default(),
            headers: HeaderPolicy::default(),
            replay_marker: HeaderName::from_static("idempotent-replayed"),
            expiry_header: None,
            rejection: None,
            lease: defaults::LEASE,
            retention: defaults::RETENTION,
            takeover: Takeover::default(),
            run_limit: defaults::RUN_LIMIT,
            transaction_retries: defaults::TRANSACTION_RETRIES,
            store_call_limit: None,
            collect_limit: defaults::COLLECT_LIMIT,
            request_limit: defaults::BODY_LIMIT,
            response_limit: defaults::BODY_LIMIT,
            detached: true,
            spawn: None,
            drain: Drain::new(),
            observer: None,
            on_in_flight: OnInFlight::default(),
            on_store_failure: OnStoreFailure::default(),
            waiters_per_key: defaults::WAITERS_PER_KEY,
            waiters: defaults::WAITERS,
            settlements: defaults::SETTLEMENTS,
            settlement_bytes: defaults::SETTLEMENT_BYTES,
            late_calls: defaults::LATE_CALLS,
        }
    }

    /// Panics if the settings contradict each other or the store, naming them.
    pub(crate) fn validate(&self, kind: StoreKind) {
        let times = [
            ("with_lease", self.lease),
            ("with_retention", self.retention),
            ("with_run_limit", self.run_limit),
            ("with_collect_limit", self.collect_limit),
            ("with_store_call_limit", self.store_call_limit(kind)),
        ];
        let wait = match self.on_in_flight {
            OnInFlight::Wait(limit) => Some(("with_on_in_flight(Wait)", limit)),
            OnInFlight::Reject => None,
        };
        for (name, time) in times.into_iter().chain(wait) {
            assert!(!time.is_zero(), "{name}: must be longer than zero");
            assert!(time <= LONGEST, "{name}: must be at most {LONGEST:?}");
        }
        assert!(
            self.retention >= self.lease,
            "with_retention ({:?}) must be at least with_lease ({:?})",
            self.retention,
            self.lease
        );
        assert!(
            kind == StoreKind::Transaction || self.store_call_limit(kind) <= self.lease / 3,
            "with_store_call_limit ({:?}) must be at most a third of with_lease ({:?}), or a renewal could come too late",
            self.store_call_limit(kind),
            self.lease
        );
        assert!(
            kind == StoreKind::Lease || self.on_store_failure == OnStoreFailure::Refuse,
            "with_on_store_failure(RunUnprotected) needs a lease store: without the store there is no transaction to run in"
        );
        assert!(
            self.transaction_retries == 0 || kind == StoreKind::Transaction,
            "with_transaction_retries needs a transaction store: another one has no transaction that could lose"
        );
        assert!(
            self.transaction_retries == 0 || self.collects_body(),
            "with_transaction_retries needs a request body that can be sent twice: with_fingerprint(head_only) streams it"
        );
        assert!(
            self.settlements > 0 && self.settlement_bytes > 0,
            "with_settlement_bounds: at a bound of zero every keyed request would be refused"
        );
        assert!(
            self.late_calls > 0,
            "with_late_call_bound: at a bound of zero every keyed request would be refused"
        );
        self.headers
            .validate(&self.replay_marker, self.expiry_header.as_ref());
        assert!(
            self.key_format.is_satisfiable(),
            "with_key_format: no key has at least the minimum and at most the maximum length (1 to 255; a UUID has 36)"
        );
        assert!(
            !self.methods.is_empty() && !self.methods.iter().any(Method::is_safe),
            "with_methods: at least one method, and none of the safe ones (GET, HEAD, OPTIONS, TRACE), which always pass"
        );
    }

    /// Whether a gRPC call is known to be unary. May panic, as the closure.
    pub(crate) fn is_unary(&self, call: &Parts) -> bool {
        let is_unary = self.grpc_unary.as_ref();
        is_unary.is_some_and(|is_unary| is_unary(call.uri.path()))
    }

    /// What the layer waits for one call of the store.
    pub(crate) fn store_call_limit(&self, kind: StoreKind) -> Duration {
        self.store_call_limit.unwrap_or(match kind {
            StoreKind::Lease => defaults::STORE_CALL_LIMIT.min(self.lease / 3),
            StoreKind::Transaction => defaults::STORE_CALL_LIMIT,
        })
    }

    /// What the layer was told, or what suits the source of its keys.
    pub(crate) fn fingerprint_by(&self) -> FingerprintBy {
        self.fingerprint
            .clone()
            .unwrap_or_else(|| match self.key.0 {
                Source::Body(_) => FingerprintBy::head_only(),
                Source::Header(_) | Source::Parts(_) => FingerprintBy::exact(),
            })
    }

    /// Whether key or fingerprint need the request body in memory.
    pub(crate) fn collects_body(&self) -> bool {
        matches!(self.key.0, Source::Body(_)) || self.fingerprint_by().reads_body()
    }
}

/// Ten years: every backend can add it to its clock.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("scope", &self.scope)
            .field("key", &self.key)
            .field("key_required", &self.key_required)
            .field("methods", &self.methods)
            .field("fingerprint", &self.fingerprint)
            .field("policy", &self.policy)
            .field("lease", &self.lease)
            .field("retention", &self.retention)
            .field("takeover", &self.takeover)
            .field("run_limit", &self.run_limit)
            .field("transaction_retries", &self.transaction_retries)
            .field("detached", &self.detached)
            .field("on_in_flight", &self.on_in_flight)
            .field("on_store_failure", &self.on_store_failure)
            .finish_non_exhaustive()
    }
}
