use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Method, Response};
use tower_layer::Layer;

use crate::{
    DetachedRun, Drain, FingerprintBy, Idempotency, KeyBy, KeyFormat, Observation, OnInFlight,
    OnStoreFailure, Rejection, ResponsePolicy, ScopeBy,
    config::Settings,
    flow::{Guard, Shared},
    store::{Store, Takeover},
};

/// Wraps a service so that requests with one idempotency key run once and are answered from the record afterwards.
///
/// Clones share the waiting and the background work, but settings belong to each layer.
#[derive(Clone)]
pub struct IdempotencyLayer {
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
    settings: Settings,
}

impl IdempotencyLayer {
    /// A layer over this store. `scope` tells whose key a key is; see [`ScopeBy`].
    #[must_use]
    pub fn new(store: impl Store, scope: ScopeBy) -> Self {
        Self {
            store: Arc::new(store),
            shared: Arc::default(),
            settings: Settings::new(scope),
        }
    }
}

/// Which requests engage, and what they are compared by.
impl IdempotencyLayer {
    /// Refuses requests without a key with 400 `missing_key`. By default they pass through unprotected.
    ///
    /// gRPC calls pass through all the same, but for those that [`with_grpc_unary`](Self::with_grpc_unary) names.
    #[must_use]
    pub fn require_key(mut self) -> Self {
        self.settings.key_required = true;
        self
    }

    /// Which gRPC calls engage, by their path, such as `/payments.v1.Payments/Charge` (default: none).
    ///
    /// Only for unary calls, which the wire doesn't tell from streams: a response is collected before the caller gets any of it.
    /// Success is a `grpc-status` of 0 ([`GrpcStatus::verdict`](crate::GrpcStatus::verdict) has the others), and what the layer refuses
    /// is a gRPC status as well ([`Rejection::to_grpc_response`]). All other gRPC passes through, and so does gRPC-Web: have it turned
    /// into gRPC outside of this layer. If the closure panics, the call is refused as `handler_failed`.
    ///
    /// ```
    /// # use tower_idempotency::{IdempotencyLayer, MemoryStore, ScopeBy};
    /// let layer = IdempotencyLayer::new(MemoryStore::new(), ScopeBy::single_tenant())
    ///     .require_key()
    ///     .with_grpc_unary(|path| matches!(path, "/payments.v1.Payments/Charge" | "/payments.v1.Payments/Refund"));
    /// ```
    #[must_use]
    pub fn with_grpc_unary(
        mut self,
        is_unary: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.grpc_unary = Some(Arc::new(is_unary));
        self
    }

    /// Where the key is found (default: the `Idempotency-Key` header).
    #[must_use]
    pub fn with_key(mut self, key: KeyBy) -> Self {
        self.settings.key = key;
        self
    }

    /// Which keys are accepted (default: 1 to 255 visible ASCII characters).
    #[must_use]
    pub fn with_key_format(mut self, format: KeyFormat) -> Self {
        self.settings.key_format = format;
        self
    }

    /// The methods that engage (default: POST, PUT, PATCH, DELETE). Safe methods always pass through.
    #[must_use]
    pub fn with_methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.settings.methods = methods.into_iter().collect();
        self
    }

    /// Keeps the records of this layer apart from those of layers with another namespace in the same store (default: empty).
    ///
    /// Changing it forgets all keys.
    #[must_use]
    pub fn with_namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// What makes two requests the same (default: [`FingerprintBy::exact`]).
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: FingerprintBy) -> Self {
        self.settings.fingerprint = Some(fingerprint);
        self
    }

    /// The largest request body that is collected for the fingerprint, in bytes (default: 1 MiB). A larger one is refused
    /// with 413 `body_too_large`. It doesn't hold where the body isn't collected.
    #[must_use]
    pub fn with_request_body_limit(mut self, limit: usize) -> Self {
        self.settings.request_limit = limit;
        self
    }
}

/// What is kept and replayed.
impl IdempotencyLayer {
    /// Which responses are saved (default: [`ResponsePolicy::default`]).
    #[must_use]
    pub fn with_response_policy(mut self, policy: ResponsePolicy) -> Self {
        self.settings.policy = policy;
        self
    }

    /// Also saves and replays this response header, one of `Date`, `Set-Cookie` and `WWW-Authenticate`, which are dropped by default.
    ///
    /// Connection headers, `Proxy-*` and `Content-Length` are never saved.
    #[must_use]
    pub fn with_saved_header(mut self, name: HeaderName) -> Self {
        self.settings.headers.kept.push(name);
        self
    }

    /// Doesn't save this response header (a rate-limit counter or request id that the handler itself sets, say).
    #[must_use]
    pub fn with_dropped_header(mut self, name: HeaderName) -> Self {
        self.settings.headers.dropped.push(name);
        self
    }

    /// The largest response body that is saved, in bytes (default: 1 MiB). A larger one reaches the caller in full,
    /// and a retry gets 409 `response_not_kept`.
    #[must_use]
    pub fn with_response_body_limit(mut self, limit: usize) -> Self {
        self.settings.response_limit = limit;
        self
    }

    /// How long a response body may take to its end before it is treated as too large (default: 5 s).
    #[must_use]
    pub fn with_collect_limit(mut self, limit: Duration) -> Self {
        self.settings.collect_limit = limit;
        self
    }

    /// The header that marks a replay with `true` (default: `Idempotent-Replayed`).
    #[must_use]
    pub fn with_replay_marker(mut self, name: HeaderName) -> Self {
        self.settings.replay_marker = name;
        self
    }

    /// Tells in this header for how many seconds the key is kept yet, as in `Idempotency-Expires-In: 86399` (default: no such header).
    ///
    /// [`defaults::EXPIRY_HEADER`](crate::defaults::EXPIRY_HEADER) is the name to use, unless there are reasons for another.
    /// It is on every answer that tells that the key is done: on the first one, if the store has the record, with the
    /// [retention](Self::with_retention); on a replay and on 409 `response_not_kept` with what is left of it. Until then a retry
    /// doesn't run the operation again; afterwards the key is new. A client that counts from when it *sent* the request is on
    /// the safe side, whatever its clock says.
    ///
    /// Whole seconds, rounded down. A header of this name that the handler sets is dropped.
    #[must_use]
    pub fn with_expiry_header(mut self, name: HeaderName) -> Self {
        self.settings.expiry_header = Some(name);
        self
    }

    /// Makes the responses of requests that the layer refuses. If the closure panics, the default response is given.
    ///
    /// Not asked for gRPC calls: what it makes is HTTP, which a gRPC client couldn't read.
    #[must_use]
    pub fn with_rejection(
        mut self,
        response: impl Fn(&Rejection) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.settings.rejection = Some(Arc::new(response));
        self
    }
}

/// Time, failures and concurrency.
impl IdempotencyLayer {
    /// How long a claim lasts unrenewed (default: 30 s); it is renewed at every third of it while the handler runs.
    /// After a crash a key is blocked for this long.
    ///
    /// A handler must not block a thread of the runtime for as long as that. Where it does so before its first `await`, another thread
    /// goes on with the renewals. Later it may be the thread that watches the runtime's clock and sockets that it blocks, and Tokio
    /// lets nobody take that over before something else is to be done: nothing is renewed until then.
    /// [`spawn_blocking`](tokio::task::spawn_blocking) is for such work.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How long a record is kept (default: 24 h), counted from completion. Make it longer than the longest time over which
    /// a client may retry: afterwards the key is new.
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// What happens to a key whose run ended without a known outcome (default: [`Takeover::Refuse`]).
    #[must_use]
    pub fn with_takeover(mut self, takeover: Takeover) -> Self {
        self.settings.takeover = takeover;
        self
    }

    /// How long the handler may run (default: 5 min). Then it is dropped, and the caller gets 504 `run_limit`.
    ///
    /// Like every limit it is looked at when the handler waits: one that blocks its thread is not cut short (but its claim is renewed,
    /// where the runtime has another thread), nor is a statement that a database is executing.
    #[must_use]
    pub fn with_run_limit(mut self, limit: Duration) -> Self {
        self.settings.run_limit = limit;
        self
    }

    /// How often a handler runs again, on a fresh transaction, after its transaction lost against another one (default: 0).
    ///
    /// That is so if the store finds a serialization failure or a deadlock when it ends the transaction, or if the handler
    /// answers with [`Verdict::Conflict`](crate::Verdict::Conflict). After the last retry the caller gets 503 `not_committed`,
    /// or the wrapped service's own error if that was its answer.
    ///
    /// - What the handler did outside of its transaction happens again. Each run gets the same request: head and body are
    ///   cloned, and so are its extensions, which may share what a clone shares.
    /// - Before each retry the key is given back and, after a short random pause (5 ms at first, at most 1 s), reserved again.
    ///   If another request has it by then, the caller gets what any request with this key would get.
    /// - Each run has a [run limit](Self::with_run_limit) of its own, so a request can take `retries` + 1 times as long. A run
    ///   that was cut off, by its limit or a panic, is not run again.
    ///
    /// Only for transaction stores, and for request bodies that are collected: not with
    /// [`head_only`](crate::FingerprintBy::head_only).
    #[must_use]
    pub fn with_transaction_retries(mut self, retries: u32) -> Self {
        self.settings.transaction_retries = retries;
        self
    }

    /// How long the layer waits for one call of the store (default: 5 s, or a third of the lease if that is shorter).
    /// The call itself goes on to its end.
    #[must_use]
    pub fn with_store_call_limit(mut self, limit: Duration) -> Self {
        self.settings.store_call_limit = Some(limit);
        self
    }

    /// What a request gets whose key is in flight (default: [`OnInFlight::Reject`]).
    #[must_use]
    pub fn with_on_in_flight(mut self, reaction: OnInFlight) -> Self {
        self.settings.on_in_flight = reaction;
        self
    }

    /// The most requests that may wait for one key (default: 8), and in total over all clones of the layer (default: 1024).
    #[must_use]
    pub fn with_waiter_bounds(mut self, per_key: usize, total: usize) -> Self {
        self.settings.waiters_per_key = per_key;
        self.settings.waiters = total;
        self
    }

    /// What happens when the store can't be reached (default: [`OnStoreFailure::Refuse`]).
    #[must_use]
    pub fn with_on_store_failure(mut self, reaction: OnStoreFailure) -> Self {
        self.settings.on_store_failure = reaction;
        self
    }

    /// How many settlements (default: 1024), with how many bytes of responses (default: 64 MiB), may be waiting for the store
    /// to come back. (A store's driver may hold copies of the responses besides.)
    ///
    /// At either bound new keyed requests get 503 `store_unavailable`. With
    /// [`RunUnprotected`](OnStoreFailure::RunUnprotected) the store is still asked for what it knows, and counts as
    /// unreachable only if it doesn't answer.
    #[must_use]
    pub fn with_settlement_bounds(mut self, count: usize, bytes: usize) -> Self {
        self.settings.settlements = count;
        self.settings.settlement_bytes = bytes;
        self
    }

    /// How many calls of the store may go on after their [limit](Self::with_store_call_limit) (default: 1024).
    ///
    /// They are never cut off, so that those of a store that hangs would add up. At the bound the store counts as unreachable
    /// and isn't asked, until some of them have ended: [`with_on_store_failure`](Self::with_on_store_failure) decides.
    #[must_use]
    pub fn with_late_call_bound(mut self, calls: usize) -> Self {
        self.settings.late_calls = calls;
        self
    }

    /// Whether a run goes on when its caller has gone (default: true).
    ///
    /// With `false` the handler runs inside the caller's future, without a task of its own. A run that is dropped there is
    /// abandoned: on a lease store the takeover policy decides, on a transaction store it is rolled back.
    #[must_use]
    pub fn with_detached(mut self, detached: bool) -> Self {
        self.settings.detached = detached;
        self
    }

    /// Spawns detached runs by this closure instead of `tokio::spawn`, to carry task-locals into them.
    ///
    /// It must spawn the future on a Tokio runtime and let it run to its end.
    #[must_use]
    pub fn with_spawn(mut self, spawn: impl Fn(DetachedRun) + Send + Sync + 'static) -> Self {
        self.settings.spawn = Some(Arc::new(spawn));
        self
    }

    /// Counts runs and background work in this [`Drain`], to wait for them at shutdown.
    #[must_use]
    pub fn with_drain(mut self, drain: Drain) -> Self {
        self.settings.drain = drain;
        self
    }

    /// Calls this closure once for each keyed request, at its end: just before the caller gets the answer, or, if the
    /// caller has gone, when the run ends.
    ///
    /// Requests that are refused because of their key are among them, those that pass through without one aren't. The
    /// closure runs on the request's own task, so it must not block. Its panic is caught and changes nothing.
    ///
    /// ```
    /// # use tower_idempotency::{IdempotencyLayer, MemoryStore, Outcome, RejectionKind, ScopeBy};
    /// let layer = IdempotencyLayer::new(MemoryStore::new(), ScopeBy::single_tenant()).with_observer(|observation| {
    ///     if observation.outcome() == Outcome::Refused(RejectionKind::OutcomeUnknown) {
    ///         eprintln!("somebody has to look at {:?}", observation.record_key());
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn with_observer(
        mut self,
        observer: impl Fn(&Observation) + Send + Sync + 'static,
    ) -> Self {
        self.settings.observer = Some(Arc::new(observer));
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    /// Wraps the service.
    ///
    /// # Panics
    ///
    /// If the settings contradict each other or the store's kind: a time of zero or above ten years, a retention shorter
    /// than the lease, a store-call limit above a third of the lease (lease stores), unprotected runs on a transaction
    /// store, transaction retries on a lease store or with request bodies that are not collected, a key format that no key has, a bound of zero on settlements or late calls, a connection header to be saved, to mark
    /// replays or to tell the expiry, one name for the last two, a header both to be saved and to be dropped, or a safe method among
    /// the methods or none at all. The message names the settings.
    fn layer(&self, inner: S) -> Idempotency<S> {
        self.settings.validate(self.store.kind());
        Idempotency::new(
            inner,
            Guard::new(
                Arc::clone(&self.store),
                Arc::clone(&self.shared),
                self.settings.clone(),
            ),
        )
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("store", &self.store)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
