use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{HeaderMap, HeaderName};
use uuid::Uuid;

use crate::{IdempotencyKey, RecordKey, Scope, flow::Notes, store::Claim};

/// What a handler can know of the run it is in. The layer puts it into the request's extensions.
///
/// With feature `axum` it is an extractor: `context: IdempotencyContext`, or `Option<IdempotencyContext>` where keys are optional.
/// A request that carries one already passes through a second idempotency layer untouched.
#[derive(Clone)]
pub struct IdempotencyContext(Arc<Inner>);

struct Inner {
    key: IdempotencyKey,
    scope: Scope,
    record_key: RecordKey,
    attempt: u32,
    fence: u64,
    protected: bool,
    claim_lost: AtomicBool,
    notes: Notes,
}

impl IdempotencyContext {
    /// The context of a run under `claim`, as the layer makes it. For tests of a handler: a request that already carries one
    /// passes through the layer. Its [steps](Self::step) are remembered in memory only.
    #[must_use]
    pub fn new(key: IdempotencyKey, scope: Scope, claim: &Claim) -> Self {
        Self::of_run(key, scope, claim, true, Notes::of_nothing())
    }

    pub(crate) fn of_run(
        key: IdempotencyKey,
        scope: Scope,
        claim: &Claim,
        protected: bool,
        notes: Notes,
    ) -> Self {
        Self(Arc::new(Inner {
            key,
            scope,
            record_key: *claim.key(),
            attempt: claim.attempt(),
            fence: claim.fence(),
            protected,
            claim_lost: AtomicBool::new(false),
            notes,
        }))
    }

    /// The key that the client sent.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.0.key
    }

    /// Whose key it is.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// The name of the record, for [`inspect`](crate::store::Store::inspect) and for logs: its `Debug` form is short and tells nothing.
    #[must_use]
    pub fn record_key(&self) -> &RecordKey {
        &self.0.record_key
    }

    /// 1 for the first run under this key, one more with each takeover.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Whether an earlier run under this key ended without a known outcome: what it did may have happened.
    #[must_use]
    pub fn is_takeover(&self) -> bool {
        self.0.attempt > 1
    }

    /// A number that only grows from run to run of this key. A downstream that keeps the largest one it saw
    /// can refuse a run that was overtaken. It is 0 in a run [without protection](Self::is_protected), of which nobody knows whether
    /// another one overtakes it: such a downstream refuses it, unless it was the first.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.fence
    }

    /// Whether another run has taken the key over, as far as the last renewal or step could tell.
    ///
    /// What this run answers will not be saved then. Check it before an effect that can't be undone.
    #[must_use]
    pub fn claim_lost(&self) -> bool {
        self.0.claim_lost.load(Ordering::Relaxed)
    }

    /// False if the store could not be reached and the layer was told to
    /// [run unprotected](crate::OnStoreFailure::RunUnprotected): another run may be going on.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.0.protected
    }

    /// A key for a downstream service: a UUID (version 5) that is the same for every attempt under this key, and differs by `name`.
    ///
    /// ```
    /// # use tower_idempotency::IdempotencyContext;
    /// # fn handler(context: IdempotencyContext) {
    /// let key_for_the_card_network = context.derive_key("card-network");
    /// # }
    /// ```
    #[must_use]
    pub fn derive_key(&self, name: &str) -> Uuid {
        let mut text = self.0.record_key.as_bytes().to_vec();
        text.extend_from_slice(name.as_bytes());
        Uuid::new_v5(&DERIVED_KEYS, &text)
    }

    /// Puts [that key](Self::derive_key) into the headers of a request to the downstream service, as `Idempotency-Key`, in place of
    /// whatever was there. The value is marked [sensitive](http::HeaderValue::set_sensitive), as every key's.
    ///
    /// For any client that has the `http` crate's headers, as hyper and reqwest (`request.headers_mut()`). A service with another header
    /// gets the key from [`derive_key`](Self::derive_key).
    ///
    /// ```
    /// # use tower_idempotency::IdempotencyContext;
    /// # fn handler(context: IdempotencyContext) -> Result<(), http::Error> {
    /// let mut request = http::Request::post("https://card-network.example/charges").body("{}")?;
    /// context.set_derived_key("card-network", request.headers_mut());
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_derived_key(&self, name: &str, headers: &mut HeaderMap) {
        let key = IdempotencyKey::from(self.derive_key(name));
        headers.insert(KEY_HEADER, key.to_header_value());
    }

    pub(crate) fn notes(&self) -> &Notes {
        &self.0.notes
    }

    pub(crate) fn set_claim_lost(&self) {
        self.0.claim_lost.store(true, Ordering::Relaxed);
    }
}

const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The namespace (RFC 9562 section 6.6) of derived keys. It never changes.
const DERIVED_KEYS: Uuid = Uuid::from_u128(0x6f0c_2f5e_8a53_4d0b_9d3e_52a1_7c46_e0b9);

impl fmt::Debug for IdempotencyContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyContext")
            .field("record_key", &self.0.record_key)
            .field("attempt", &self.0.attempt)
            .field("fence", &self.0.fence)
            .finish_non_exhaustive()
    }
}
