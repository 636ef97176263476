use std::time::Duration;

/// Tells that a request was sent before with its key, in an earlier call, and how long ago. It goes into the request's
/// extensions, beside the key.
///
/// The key's age then counts from there ([`with_max_key_age`](super::IdempotentRetryLayer::with_max_key_age)), and the outcome is
/// unknown from the beginning: a 401, say, tells nothing of what the earlier attempts did.
/// Without it a key counts as new, wherever it comes from; a resumed request without its key is [not sent](super::ErrorKind::InvalidKey).
///
/// ```
/// # use std::time::Duration;
/// # use http::Request;
/// use tower_idempotency::{IdempotencyKey, client::Resumed};
///
/// # fn stored() -> (IdempotencyKey, Duration) { (IdempotencyKey::random(), Duration::from_secs(60)) }
/// let (key, age) = stored(); // what the caller noted before the first attempt
/// let request = Request::post("https://payments.test/charges")
///     .extension(key)
///     .extension(Resumed::after(age))
///     .body(());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    age: Duration,
}

impl Resumed {
    /// First sent this long ago, by the caller's own clock. When in doubt, say longer.
    #[must_use]
    pub fn after(age: Duration) -> Self {
        Self { age }
    }

    /// How long ago the key was first sent.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }
}
