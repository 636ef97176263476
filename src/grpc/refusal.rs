use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, header};

use super::GrpcStatus;
use crate::{Rejection, RejectionKind, content_type::GRPC};

impl Rejection {
    /// The response that the layer gives to a gRPC call: 200 without a body, and in its head (Trailers-Only)
    ///
    /// - `grpc-status`, see [`RejectionKind::grpc_status`], and `grpc-message` with the [detail](Self::detail);
    /// - `idempotency-code`, the [code](RejectionKind::code), as metadata;
    /// - `grpc-retry-pushback-ms`: when the same call may be sent again with the same key ([`retry_after`](Self::retry_after)), or -1 if
    ///   it would be refused again. A client's retry policy that has this status heeds it (gRFC A6). It is missing where a retry may
    ///   help and the client's own backoff is as good: after `handler_failed`, `run_limit` and `incomplete_body`.
    #[must_use]
    pub fn to_grpc_response(&self) -> Response<Bytes> {
        let kind = self.kind();
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(GRPC));
        headers.insert(
            GrpcStatus::HEADER,
            HeaderValue::from(u16::from(kind.grpc_status().code())),
        );
        if let Ok(message) = HeaderValue::try_from(percent_encoded(self.detail())) {
            headers.insert(MESSAGE, message);
        }
        if let Some(pushback) = self.pushback() {
            headers.insert(PUSHBACK, HeaderValue::from(pushback));
        }
        headers.insert(CODE, HeaderValue::from_static(kind.code()));
        response
    }

    /// In milliseconds.
    fn pushback(&self) -> Option<i64> {
        match self.retry_after() {
            Some(after) => Some(i64::try_from(after.as_millis()).unwrap_or(i64::MAX)),
            None if self.kind().is_final() => Some(-1),
            None => None,
        }
    }
}

/// The metadata that tells what was refused. A client needs it to tell a key in flight from a handler's own ABORTED.
pub(crate) const CODE: HeaderName = HeaderName::from_static("idempotency-code");

const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

impl RejectionKind {
    /// The status of the refusal of a gRPC call.
    ///
    /// | kind | status | pushback, ms | why this status |
    /// |---|---|---|---|
    /// | `missing_key`, `invalid_key`, `key_reused` | `InvalidArgument` | -1 | the client has to change its call; no state of the system has to change first |
    /// | `incomplete_body` | `Aborted` | | nothing was done, and the same call may be sent again |
    /// | `missing_scope` | `PermissionDenied` | -1 | as 403 |
    /// | `in_flight` | `Aborted` | 1000 or more | something that goes on at the same time; not `Unavailable`, which circuit breakers and outlier detection count against a server that is well |
    /// | `response_not_kept` | `AlreadyExists` | -1 | it is done |
    /// | `outcome_unknown` | `FailedPrecondition` | -1 | somebody has to look first: no retry before that |
    /// | `body_too_large` | `ResourceExhausted` | -1 | what gRPC libraries say of a message over a limit |
    /// | `handler_failed` | `Internal` | | as 500 |
    /// | `run_limit` | `DeadlineExceeded` | | as 504; it may have happened all the same |
    /// | `store_unavailable`, `store_full`, `not_committed`, `outcome_pending` | `Unavailable` | 1000 | the same call may be sent again, which is what retry policies do by default |
    #[must_use]
    pub fn grpc_status(self) -> GrpcStatus {
        match self {
            Self::MissingKey | Self::InvalidKey | Self::KeyReused => GrpcStatus::InvalidArgument,
            Self::IncompleteBody | Self::InFlight => GrpcStatus::Aborted,
            Self::MissingScope => GrpcStatus::PermissionDenied,
            Self::ResponseNotKept => GrpcStatus::AlreadyExists,
            Self::OutcomeUnknown => GrpcStatus::FailedPrecondition,
            Self::BodyTooLarge => GrpcStatus::ResourceExhausted,
            Self::HandlerFailed => GrpcStatus::Internal,
            Self::RunLimit => GrpcStatus::DeadlineExceeded,
            Self::StoreUnavailable
            | Self::StoreFull
            | Self::NotCommitted
            | Self::OutcomePending => GrpcStatus::Unavailable,
        }
    }

    /// Whether the same call would be refused again, so that a retry policy is to be told not to try.
    fn is_final(self) -> bool {
        match self {
            Self::MissingKey
            | Self::InvalidKey
            | Self::KeyReused
            | Self::MissingScope
            | Self::ResponseNotKept
            | Self::OutcomeUnknown
            | Self::BodyTooLarge => true,
            Self::IncompleteBody
            | Self::InFlight
            | Self::HandlerFailed
            | Self::RunLimit
            | Self::StoreUnavailable
            | Self::StoreFull
            | Self::NotCommitted
            | Self::OutcomePending => false,
        }
    }
}

/// As gRPC wants it: visible ASCII and blanks but for `%` stand for themselves.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string never fails.
            let _written = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::percent_encoded;

    #[test]
    fn a_message_is_percent_encoded() {
        assert_eq!(percent_encoded("100 % of ä\n~"), "100 %25 of %C3%A4%0A~");
    }
}
