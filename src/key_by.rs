use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName, request::Parts};

use crate::{IdempotencyKey, InvalidKey, KeyFormat};

/// Where the key of a request is found. By default in the `Idempotency-Key` header.
///
/// Not in a correlation or request id: clients send one of those for a whole group of calls.
#[derive(Clone)]
pub struct KeyBy(pub(crate) Source);

#[derive(Clone)]
pub(crate) enum Source {
    Header(HeaderName),
    Parts(Arc<PartsFn>),
    Body(Arc<BodyFn>),
}

type PartsFn = dyn Fn(&Parts) -> Option<String> + Send + Sync;
type BodyFn = dyn Fn(&Parts, &[u8]) -> Option<String> + Send + Sync;

impl KeyBy {
    /// In this header, bare (`8e03978e-…`) or as a structured-field string (`"8e03978e-…"`, RFC 9651); both are the same key.
    ///
    /// Two lines of it are refused, even with one value.
    #[must_use]
    pub fn header(name: HeaderName) -> Self {
        Self(Source::Header(name))
    }

    /// By a closure over the request's head. `None` is a request without a key.
    #[must_use]
    pub fn parts(key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Source::Parts(Arc::new(key)))
    }

    /// By a closure over head and body, for webhooks that carry an event id there. `None` is a request without a key.
    ///
    /// The body is collected first. The default fingerprint is then [`head_only`](crate::FingerprintBy::head_only),
    /// because a redelivery of one event may differ in its body.
    #[must_use]
    pub fn body(key: impl Fn(&Parts, &[u8]) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Source::Body(Arc::new(key)))
    }
}

impl Default for KeyBy {
    fn default() -> Self {
        Self::header(HeaderName::from_static("idempotency-key"))
    }
}

impl fmt::Debug for KeyBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Header(name) => write!(f, "KeyBy::header({name})"),
            Source::Parts(_) => f.write_str("KeyBy::parts(..)"),
            Source::Body(_) => f.write_str("KeyBy::body(..)"),
        }
    }
}

/// The key in a header. Neither the first nor the last of two lines is taken: a proxy that joins them would make a third key.
pub(crate) fn from_header(
    name: &HeaderName,
    headers: &HeaderMap,
    format: &KeyFormat,
) -> Result<Option<IdempotencyKey>, InvalidKey> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => format.parse(value).map(Some),
        (Some(_), Some(_)) => Err(InvalidKey::TWO_LINES),
    }
}
