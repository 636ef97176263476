use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName, StatusCode, header, response::Parts};

use crate::GrpcStatus;

/// What is to become of a response that the handler gave.
///
/// The layer's [`ResponsePolicy`] decides it. A handler overrules the policy by putting a `Verdict` into the response's
/// extensions; with feature `axum` it is a response part, as in `(Verdict::Tombstone, Json(credentials))`.
/// `Verdict::for_error` makes one of an error of sqlx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// The operation is done: retries get this response. In a transaction store the handler's writes commit.
    Save,
    /// Nothing happened: a retry runs the handler again. In a transaction store the handler's writes are rolled back.
    /// A [takeover](crate::IdempotencyContext::is_takeover) says so of itself only: the retry is told of the run before it, too.
    /// After a [step](crate::IdempotencyContext::step) only the handler can say it: of the layer's policy it is
    /// [`Unknown`](Self::Unknown) then.
    Discard,
    /// Something may have happened: the [takeover policy](crate::store::Takeover) decides what a retry does.
    /// In a transaction store the handler's writes are rolled back and a retry runs.
    Unknown,
    /// The handler's transaction lost against another one (serialization failure, deadlock): nothing happened, and the same
    /// request may succeed. It is rolled back, and the caller gets 503 `not_committed` instead of the handler's answer; or the
    /// handler [runs again](crate::IdempotencyLayer::with_transaction_retries). With a lease store it is for a transaction of the
    /// handler's own: the key is released, or after a [step](crate::IdempotencyContext::step) left to a takeover.
    Conflict,
    /// The operation is done, but this body must not be kept (credentials, say): retries get 409 `response_not_kept`.
    /// In a transaction store the handler's writes commit.
    Tombstone,
}

/// Which [`Verdict`] a response gets when the handler didn't give one.
///
/// By default:
///
/// | status | verdict |
/// |---|---|
/// | 2xx, 3xx | [`Save`](Verdict::Save) |
/// | 408, 5xx | [`Unknown`](Verdict::Unknown) |
/// | other 4xx | [`Discard`](Verdict::Discard) |
/// | 1xx (an upgrade: done, but there is no response to replay) | [`Tombstone`](Verdict::Tombstone) |
///
/// A gRPC call is judged by [`GrpcStatus::verdict`].
#[derive(Clone, Default)]
pub struct ResponsePolicy(Policy);

#[derive(Clone, Default)]
enum Policy {
    #[default]
    ByStatus,
    SaveAll,
    By(Arc<dyn Fn(&Parts) -> Verdict + Send + Sync>),
}

impl ResponsePolicy {
    /// Saves whatever the handler answers: errors are replayed too, as the first version of Stripe's API does.
    #[must_use]
    pub fn save_all() -> Self {
        Self(Policy::SaveAll)
    }

    /// Asks the closure. It sees the status of a gRPC call, wherever it was told, as [`GrpcStatus`] in the extensions. If it panics, the response counts as a handler that panicked.
    #[must_use]
    pub fn by(verdict: impl Fn(&Parts) -> Verdict + Send + Sync + 'static) -> Self {
        Self(Policy::By(Arc::new(verdict)))
    }

    /// The handler's own verdict, or what the policy says. An upgrade is never saved, there is no response to replay.
    pub(crate) fn verdict(&self, response: &Parts) -> Verdict {
        let verdict = match (response.extensions.get::<Verdict>(), &self.0) {
            (Some(verdict), _) => *verdict,
            (None, Policy::ByStatus) => match response.extensions.get::<GrpcStatus>() {
                Some(status) => status.verdict(),
                None => by_status(response.status),
            },
            (None, Policy::SaveAll) => Verdict::Save,
            (None, Policy::By(verdict)) => verdict(response),
        };
        // Whoever got it as a replay would wait for a protocol that nobody speaks.
        if verdict == Verdict::Save && response.status.is_informational() {
            return Verdict::Tombstone;
        }
        verdict
    }
}

fn by_status(status: StatusCode) -> Verdict {
    if status.is_success() || status.is_redirection() {
        Verdict::Save
    } else if status == StatusCode::REQUEST_TIMEOUT {
        Verdict::Unknown
    } else if status.is_client_error() {
        Verdict::Discard
    } else if status.is_informational() {
        Verdict::Tombstone
    } else {
        Verdict::Unknown
    }
}

impl fmt::Debug for ResponsePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Policy::ByStatus => "ResponsePolicy::default()",
            Policy::SaveAll => "ResponsePolicy::save_all()",
            Policy::By(_) => "ResponsePolicy::by(..)",
        })
    }
}

/// Which response headers are kept for a replay: all but those that belong to the first exchange alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderPolicy {
    pub(crate) kept: Vec<HeaderName>,
    pub(crate) dropped: Vec<HeaderName>,
}

impl HeaderPolicy {
    /// Panics if a header can't be treated as it was told to be.
    pub(crate) fn validate(&self, replay_marker: &HeaderName, expiry: Option<&HeaderName>) {
        let none = HeaderMap::new();
        for name in &self.kept {
            assert!(
                !is_connection_header(name, &none),
                "with_saved_header({name}): belongs to one connection and is never saved"
            );
            assert!(
                !self.dropped.contains(name),
                "with_saved_header and with_dropped_header: both name {name}"
            );
        }
        assert!(
            !is_connection_header(replay_marker, &none),
            "with_replay_marker({replay_marker}): belongs to the connection"
        );
        if let Some(expiry) = expiry {
            assert!(
                !is_connection_header(expiry, &none),
                "with_expiry_header({expiry}): belongs to the connection"
            );
            assert!(
                expiry != replay_marker,
                "with_expiry_header and with_replay_marker: both name {expiry}"
            );
        }
    }

    /// None if there are too many: a map takes 24576 names.
    pub(crate) fn select(&self, headers: &HeaderMap) -> Option<HeaderMap> {
        // With room for what a replay adds, which goes into a copy.
        let mut selected = HeaderMap::try_with_capacity(headers.len() + 2).ok()?;
        for (name, value) in headers {
            if self.keeps(name, headers) {
                selected.append(name, value.clone());
            }
        }
        Some(selected)
    }

    fn keeps(&self, name: &HeaderName, headers: &HeaderMap) -> bool {
        // Never adjustable: a replayed connection header breaks the connection it is replayed on.
        if is_connection_header(name, headers) {
            return false;
        }
        self.kept.contains(name)
            || !(self.dropped.contains(name)
                || [header::DATE, header::SET_COOKIE, header::WWW_AUTHENTICATE].contains(name))
    }
}

/// Hop-by-hop headers (RFC 9110 section 7.6.1), those named by `Connection`, and the length, which the server works out anew.
pub(crate) fn is_connection_header(name: &HeaderName, headers: &HeaderMap) -> bool {
    const ALWAYS: [HeaderName; 6] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    let name_text = name.as_str();
    ALWAYS.contains(name)
        || name_text == "keep-alive"
        || name_text.starts_with("proxy-")
        || headers.get_all(header::CONNECTION).iter().any(|value| {
            value.as_bytes().split(|byte| *byte == b',').any(|named| {
                named
                    .trim_ascii()
                    .eq_ignore_ascii_case(name_text.as_bytes())
            })
        })
}
