use std::fmt;

use http::{HeaderMap, HeaderName, StatusCode, response::Parts};

use crate::Verdict;

/// The status with which a gRPC call ended, wherever it was told: in the head, or in the trailers.
///
/// In the extensions of the response of a call that [engages](crate::IdempotencyLayer::with_grpc_unary), so that a closure given to
/// [`ResponsePolicy::by`](crate::ResponsePolicy::by) sees it. A status that is missing or malformed is [`Unknown`](Self::Unknown), as it
/// is for clients. It isn't there if the response was too large or too slow to be read to its end.
///
/// ```
/// use tower_idempotency::{GrpcStatus, ResponsePolicy, Verdict};
///
/// // A declined card is an answer, and retries get it too.
/// let policy = ResponsePolicy::by(|response| match response.extensions.get::<GrpcStatus>() {
///     Some(GrpcStatus::FailedPrecondition) => Verdict::Save,
///     Some(status) => status.verdict(),
///     None => Verdict::Save,
/// });
/// # drop(policy);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GrpcStatus {
    /// 0: done.
    Ok = 0,
    /// 1: cancelled, mostly by the caller.
    Cancelled = 1,
    /// 2: an error that nothing more is known of; also a status that can't be read.
    Unknown = 2,
    /// 3: an argument is wrong, whatever the state of the system.
    InvalidArgument = 3,
    /// 4: the deadline passed before the end.
    DeadlineExceeded = 4,
    /// 5: something that was asked for isn't there.
    NotFound = 5,
    /// 6: what was to be made is there already.
    AlreadyExists = 6,
    /// 7: the caller may not do this.
    PermissionDenied = 7,
    /// 8: a quota or other resource is used up.
    ResourceExhausted = 8,
    /// 9: the system isn't in the state that the operation needs.
    FailedPrecondition = 9,
    /// 10: given up because of something that went on at the same time.
    Aborted = 10,
    /// 11: past the valid range.
    OutOfRange = 11,
    /// 12: there is no such operation.
    Unimplemented = 12,
    /// 13: something is broken.
    Internal = 13,
    /// 14: the service can't be reached now.
    Unavailable = 14,
    /// 15: data was lost or corrupted.
    DataLoss = 15,
    /// 16: it isn't known who calls.
    Unauthenticated = 16,
}

impl GrpcStatus {
    pub(super) const HEADER: HeaderName = HeaderName::from_static("grpc-status");

    const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The number on the wire, 0 to 16.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The verdict on a call that ended with this status, if nobody says otherwise.
    ///
    /// | status | verdict |
    /// |---|---|
    /// | `Ok` | [`Save`](Verdict::Save) |
    /// | `InvalidArgument`, `NotFound`, `AlreadyExists`, `PermissionDenied`, `ResourceExhausted`, `FailedPrecondition`, `Aborted`, `OutOfRange`, `Unimplemented`, `Unauthenticated`: the operation was turned down | [`Discard`](Verdict::Discard) |
    /// | `Cancelled`, `Unknown`, `DeadlineExceeded`, `Internal`, `Unavailable`, `DataLoss`: it may have happened, or a part of it | [`Unknown`](Verdict::Unknown) |
    #[must_use]
    pub fn verdict(self) -> Verdict {
        match self {
            Self::Ok => Verdict::Save,
            Self::InvalidArgument
            | Self::NotFound
            | Self::AlreadyExists
            | Self::PermissionDenied
            | Self::ResourceExhausted
            | Self::FailedPrecondition
            | Self::Aborted
            | Self::OutOfRange
            | Self::Unimplemented
            | Self::Unauthenticated => Verdict::Discard,
            // A handler that calls others passes these on, of a call that may have come through.
            Self::Cancelled
            | Self::Unknown
            | Self::DeadlineExceeded
            | Self::Internal
            | Self::Unavailable
            | Self::DataLoss => Verdict::Unknown,
        }
    }

    /// The status of a whole response. Where it is told more than once, it is OK only if nothing says otherwise.
    pub(crate) fn of(head: &Parts, trailers: Option<&HeaderMap>) -> Self {
        let maps = [Some(&head.headers), trailers].into_iter().flatten();
        let mut told = maps
            .flat_map(|map| map.get_all(Self::HEADER))
            .map(|value| Self::parse(value.as_bytes()))
            .peekable();
        if told.peek().is_none() {
            return Self::of_http(head.status);
        }
        match told.find(|status| *status != Self::Ok) {
            Some(status) => status,
            None if head.status == StatusCode::OK => Self::Ok,
            None => Self::Unknown,
        }
    }

    /// The status that the head alone tells: of a response that ends with it, or that is no gRPC.
    pub(crate) fn of_head(head: &Parts) -> Option<Self> {
        let told = head.headers.contains_key(Self::HEADER) || head.status != StatusCode::OK;
        told.then(|| Self::of(head, None))
    }

    /// What clients take a response without a gRPC status for: the table of gRPC's "HTTP to gRPC Status Code Mapping".
    fn of_http(status: StatusCode) -> Self {
        match status {
            StatusCode::BAD_REQUEST => Self::Internal,
            StatusCode::UNAUTHORIZED => Self::Unauthenticated,
            StatusCode::FORBIDDEN => Self::PermissionDenied,
            StatusCode::NOT_FOUND => Self::Unimplemented,
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    fn parse(text: &[u8]) -> Self {
        let code = match text {
            [digit @ b'0'..=b'9'] => digit - b'0',
            [b'1', digit @ b'0'..=b'6'] => 10 + digit - b'0',
            _ => return Self::Unknown,
        };
        let status = Self::ALL.get(usize::from(code));
        status.copied().unwrap_or(Self::Unknown)
    }
}

/// The name in gRPC's own list, such as `INVALID_ARGUMENT`.
impl fmt::Display for GrpcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::GrpcStatus;

    #[test]
    fn the_code_of_each_status_is_read_as_that_status() {
        for (code, status) in GrpcStatus::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(status.code()), code);
            assert_eq!(GrpcStatus::parse(code.to_string().as_bytes()), status);
        }
    }

    #[test]
    fn a_status_is_shown_by_its_name_in_grpc() {
        for status in GrpcStatus::ALL {
            let name = status.to_string().replace('_', "");
            assert!(name.eq_ignore_ascii_case(&format!("{status:?}")), "{name}");
        }
    }

    #[test]
    fn what_is_no_code_is_read_as_unknown() {
        for text in ["", " ", "00", "+0", "0 ", "-1", "17", "99", "0x0", "OK"] {
            assert_eq!(GrpcStatus::parse(text.as_bytes()), GrpcStatus::Unknown);
        }
    }
}
