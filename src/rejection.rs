use std::{borrow::Cow, fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use crate::defaults;

/// A request that the layer answers itself, without an answer of the handler.
///
/// It becomes an `application/problem+json` response (RFC 9457), unless
/// [`with_rejection`](crate::IdempotencyLayer::with_rejection) makes another one of it; for a gRPC call, a
/// [gRPC status](Self::to_grpc_response).
#[derive(Clone, Debug)]
pub struct Rejection {
    kind: RejectionKind,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
}

/// Why a request was refused. Also in the extensions of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectionKind {
    /// 400 `missing_key`: the route requires a key and there is none.
    MissingKey,
    /// 400 `invalid_key`: the key is malformed, or there are two.
    InvalidKey,
    /// 400 `incomplete_body`: the request body broke off; nothing was stored.
    IncompleteBody,
    /// 403 `missing_scope`: it can't be told whose key it is, as where what tells it isn't a layer *outside* of this one.
    MissingScope,
    /// 409 `in_flight`: another request with this key is still running.
    InFlight,
    /// 409 `response_not_kept`: the operation is done, its response was not kept.
    ResponseNotKept,
    /// 409 `outcome_unknown`: a run ended without a known outcome, and it is not run again.
    OutcomeUnknown,
    /// 413 `body_too_large`: the request body is over the limit; nothing was stored.
    BodyTooLarge,
    /// 422 `key_reused`: the key belongs to another request.
    KeyReused,
    /// 500 `handler_failed`: the handler, or a closure given to the layer, panicked or misused its transaction.
    HandlerFailed,
    /// 504 `run_limit`: the handler ran longer than its limit and was dropped.
    RunLimit,
    /// 503 `store_unavailable`: the store is down or slow, or the record has a format from a later release. This request ran nothing.
    StoreUnavailable,
    /// 503 `store_full`: the store has no room for another key.
    StoreFull,
    /// 503 `not_committed`: the transaction was rolled back at its end, or lost against another one
    /// ([`Verdict::Conflict`](crate::Verdict::Conflict)); nothing happened, and a retry runs.
    NotCommitted,
    /// 503 `outcome_pending`: the handler ran, and whether that counts can't be told now: its `COMMIT` was not answered, or its claim
    /// was lost and the record can't be read. A retry with the same key will tell.
    OutcomePending,
}

impl Rejection {
    /// A refusal of this kind, as the layer makes it. For tests of a closure given to
    /// [`with_rejection`](crate::IdempotencyLayer::with_rejection).
    #[must_use]
    pub fn new(kind: RejectionKind) -> Self {
        Self::because(kind, kind.describe().1)
    }

    pub(crate) fn because(kind: RejectionKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            retry_after: kind.retry_after(),
        }
    }

    /// In flight, and the store knows for how long at least.
    pub(crate) fn in_flight(retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after.max(defaults::RETRY_AFTER)),
            ..Self::new(RejectionKind::InFlight)
        }
    }

    /// Why.
    #[must_use]
    pub fn kind(&self) -> RejectionKind {
        self.kind
    }

    /// One sentence for the client's developer. Its wording may change, the [code](RejectionKind::code) doesn't.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What `Retry-After` says, rounded up to whole seconds: when the same request may be sent again with the same key.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The response that the layer gives by default, but to gRPC calls.
    #[must_use]
    pub fn to_response(&self) -> Response<Bytes> {
        let kind = self.kind;
        let problem = json!({
            "type": format!("urn:tower-idempotency:{}", kind.code()),
            "title": kind.describe().0,
            "status": kind.status().as_u16(),
            "code": kind.code(),
            "detail": self.detail,
        });
        let mut response = Response::new(Bytes::from(problem.to_string()));
        *response.status_mut() = kind.status();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(header::LINK, HeaderValue::from_static(DESCRIBED_BY));
        if let Some(after) = self.retry_after {
            let seconds = after
                .as_secs()
                .saturating_add(u64::from(after.subsec_nanos() > 0));
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// What the header is and what the client is to do, in the words of the draft that defines it.
const DESCRIBED_BY: &str = "<https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/>; rel=\"describedby\"";

impl RejectionKind {
    /// Each of them once.
    #[cfg(any(feature = "metrics", test))]
    pub(crate) const ALL: [Self; 15] = [
        Self::MissingKey,
        Self::InvalidKey,
        Self::IncompleteBody,
        Self::MissingScope,
        Self::InFlight,
        Self::ResponseNotKept,
        Self::OutcomeUnknown,
        Self::BodyTooLarge,
        Self::KeyReused,
        Self::HandlerFailed,
        Self::RunLimit,
        Self::StoreUnavailable,
        Self::StoreFull,
        Self::NotCommitted,
        Self::OutcomePending,
    ];

    /// The stable name, as in the `code` member of the problem and at the end of its `type`.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::MissingKey => "missing_key",
            Self::InvalidKey => "invalid_key",
            Self::IncompleteBody => "incomplete_body",
            Self::MissingScope => "missing_scope",
            Self::InFlight => "in_flight",
            Self::ResponseNotKept => "response_not_kept",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::BodyTooLarge => "body_too_large",
            Self::KeyReused => "key_reused",
            Self::HandlerFailed => "handler_failed",
            Self::RunLimit => "run_limit",
            Self::StoreUnavailable => "store_unavailable",
            Self::StoreFull => "store_full",
            Self::NotCommitted => "not_committed",
            Self::OutcomePending => "outcome_pending",
        }
    }

    /// The status of the default response.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::MissingKey | Self::InvalidKey | Self::IncompleteBody => StatusCode::BAD_REQUEST,
            Self::MissingScope => StatusCode::FORBIDDEN,
            Self::InFlight | Self::ResponseNotKept | Self::OutcomeUnknown => StatusCode::CONFLICT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::HandlerFailed => StatusCode::INTERNAL_SERVER_ERROR,
            Self::RunLimit => StatusCode::GATEWAY_TIMEOUT,
            Self::StoreUnavailable
            | Self::StoreFull
            | Self::NotCommitted
            | Self::OutcomePending => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// When the client should send the same request with the same key again, if that may help.
    #[must_use]
    pub fn retry_after(self) -> Option<Duration> {
        let retried = self == Self::InFlight || self.status() == StatusCode::SERVICE_UNAVAILABLE;
        retried.then_some(defaults::RETRY_AFTER)
    }

    /// Title and detail.
    fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::MissingKey => (
                "Idempotency key missing",
                "This operation needs an idempotency key: send a fresh UUID, and the same one with every retry.",
            ),
            Self::InvalidKey => (
                "Idempotency key malformed",
                "The idempotency key can't be read.",
            ),
            Self::IncompleteBody => (
                "Request body incomplete",
                "The request body broke off. Nothing was done; send the same request again.",
            ),
            Self::MissingScope => (
                "Caller unknown",
                "It can't be told whose idempotency key this is.",
            ),
            Self::InFlight => (
                "Request in flight",
                "A request with this idempotency key is still running; ask again later with the same key.",
            ),
            Self::ResponseNotKept => (
                "Response not kept",
                "The operation with this idempotency key is done, but its response was not kept.",
            ),
            Self::OutcomeUnknown => (
                "Outcome unknown",
                "An earlier request with this idempotency key ended without a known outcome. It may have taken effect; find out before using a new key.",
            ),
            Self::BodyTooLarge => (
                "Request body too large",
                "The request body is larger than this operation accepts with an idempotency key. Nothing was done.",
            ),
            Self::KeyReused => (
                "Idempotency key reused",
                "This idempotency key was used for another request, which may have taken effect; a new operation needs a new key.",
            ),
            Self::HandlerFailed => ("Internal error", "The operation failed."),
            Self::RunLimit => (
                "Run limit reached",
                "The operation took too long and was given up.",
            ),
            Self::StoreUnavailable => (
                "Idempotency records unavailable",
                "Idempotency records can't be reached now; send the same request again with the same key.",
            ),
            Self::StoreFull => (
                "Idempotency records full",
                "There is no room for another idempotency key now; send the same request again later.",
            ),
            Self::NotCommitted => (
                "Not committed",
                "The operation was rolled back. Nothing happened; send the same request again with the same key.",
            ),
            Self::OutcomePending => (
                "Outcome pending",
                "Whether the operation took effect can't be told yet; send the same request again with the same key.",
            ),
        }
    }
}

impl fmt::Display for RejectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}
