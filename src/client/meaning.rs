use http::StatusCode;

use super::Decision;
use crate::RejectionKind;

/// What an attempt says about the operation. Both follow from it: whether a retry may change the answer, and whether the attempt may
/// have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The operation is answered for good: it was done, or its answer was replayed. That holds for earlier attempts too.
    Done,
    /// Another attempt is at it.
    Running,
    /// This attempt did nothing, and another one would neither.
    Refused,
    /// This attempt did nothing, and another one may.
    Busy,
    /// This attempt may have done something, and another one may tell.
    Failed,
    /// This attempt, or an earlier one, may have done something, and another one can't tell.
    Unclear,
}

impl Meaning {
    pub(super) fn of_http(status: StatusCode, code: Option<&str>) -> Self {
        if let Some(meaning) = code.and_then(Self::of_code) {
            return meaning;
        }
        match status {
            done if done.is_success() => Self::Done,
            StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => Self::Busy,
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Self::Failed,
            // A redirect, too: something in front of the server may send everybody to its log-in page, and knows nothing of earlier
            // attempts. The server's own is known as a replay.
            refused if refused.is_client_error() || refused.is_redirection() => Self::Refused,
            // An upgrade, or a number that isn't one of HTTP's.
            _ => Self::Unclear,
        }
    }

    /// By the numbers of gRPC's status codes.
    pub(super) fn of_grpc(status: i32, code: Option<&str>) -> Self {
        if status == 0 {
            return Self::Done;
        }
        if let Some(meaning) = code.and_then(Self::of_code) {
            return meaning;
        }
        match status {
            // UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE; and RESOURCE_EXHAUSTED, which a limiter answers, but also a
            // server whose answer is too large to be sent.
            2 | 4 | 8 | 13 | 14 => Self::Failed,
            // CANCELLED, DATA_LOSS.
            1 | 15 => Self::Unclear,
            _ => Self::Refused,
        }
    }

    /// Of what our server answers by itself, as far as it says more than the status.
    fn of_code(code: &str) -> Option<Self> {
        use RejectionKind as Kind;
        let is = |kind: Kind| code == kind.code();
        if is(Kind::InFlight) {
            Some(Self::Running)
        } else if is(Kind::ResponseNotKept) {
            Some(Self::Done)
        } else if is(Kind::OutcomeUnknown) {
            Some(Self::Unclear)
        } else if is(Kind::BodyTooLarge) {
            // Its gRPC status, RESOURCE_EXHAUSTED, may come after a success elsewhere.
            Some(Self::Refused)
        } else if is(Kind::NotCommitted) || is(Kind::StoreFull) || is(Kind::StoreUnavailable) {
            Some(Self::Busy)
        } else {
            None
        }
    }

    pub(super) fn decision(self) -> Decision {
        match self {
            Self::Done | Self::Refused | Self::Unclear => Decision::Final,
            Self::Running => Decision::Wait,
            Self::Busy | Self::Failed => Decision::Retry,
        }
    }

    /// Whether the outcome is open after this attempt, if it was `before`.
    pub(super) fn leaves_open(self, decision: Decision, before: bool) -> bool {
        match (self, decision) {
            (Self::Done, Decision::Final) => false,
            (Self::Busy, Decision::Final | Decision::Retry) | (Self::Refused, Decision::Final) => {
                before
            }
            // A policy that sends again what looks answered, or waits, knows more.
            _ => true,
        }
    }
}
