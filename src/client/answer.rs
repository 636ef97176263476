use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, response::Parts};

use super::{Decision, meaning::Meaning};
use crate::{content_type, content_type::is_grpc};

/// The answer to an attempt, as a [`RetryPolicy`](super::RetryPolicy) sees it.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    head: &'a Parts,
    reading: &'a Reading,
}

impl<'a> Answer<'a> {
    pub(super) fn new(head: &'a Parts, reading: &'a Reading) -> Self {
        Self { head, reading }
    }

    /// The status. That of a gRPC answer is 200, mostly.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        &self.head.headers
    }

    /// The number in `grpc-status`, from the head or the trailers, if it is a gRPC answer whose status has come.
    #[must_use]
    pub fn grpc_status(&self) -> Option<i32> {
        self.reading.grpc_status
    }

    /// The `code` of a problem document (RFC 9457) that isn't too large; of a gRPC answer, the metadata `idempotency-code`. Our
    /// server's codes are those of [`RejectionKind::code`](crate::RejectionKind::code).
    #[must_use]
    pub fn code(&self) -> Option<&'a str> {
        self.reading.code.as_deref()
    }

    /// Whether it is marked as a replay.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.reading.replay
    }

    pub(super) fn meaning(&self) -> Meaning {
        if self.is_replay() {
            return Meaning::Done;
        }
        match self.grpc_status() {
            Some(status) => Meaning::of_grpc(status, self.code()),
            None => Meaning::of_http(self.status(), self.code()),
        }
    }

    pub(super) fn decision(&self) -> Decision {
        match pushback(self.headers()) {
            // gRFC A6: a server that says so doesn't want to be asked again.
            Some(Pushback::Never) => Decision::Final,
            _ => self.meaning().decision(),
        }
    }
}

/// What was read from an answer, besides its status.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) replay: bool,
    grpc_status: Option<i32>,
    code: Option<String>,
}

impl Reading {
    /// `data` and `trailers` are there if the body was collected.
    pub(super) fn of(
        head: &Parts,
        data: Option<&[u8]>,
        trailers: Option<&HeaderMap>,
        replay_marker: &HeaderName,
    ) -> Self {
        let headers = &head.headers;
        let grpc = is_grpc(headers) && head.status == StatusCode::OK;
        let code = match data {
            _ if grpc => headers
                .get("idempotency-code")
                .and_then(|code| Some(code.to_str().ok()?.to_owned())),
            Some(data) if is_problem(headers) => problem_code(data),
            _ => None,
        };
        let status = headers
            .get("grpc-status")
            .or_else(|| trailers?.get("grpc-status"));
        Self {
            replay: headers
                .get(replay_marker)
                .is_some_and(|value| value == "true"),
            grpc_status: status.filter(|_| grpc).map(grpc_status),
            code,
        }
    }
}

pub(super) fn is_problem(headers: &HeaderMap) -> bool {
    content_type::starts_with(headers, b"application/problem+json")
}

fn problem_code(body: &[u8]) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(problem.get("code")?.as_str()?.to_owned())
}

/// One that can't be read is UNKNOWN, as gRPC has it.
fn grpc_status(value: &HeaderValue) -> i32 {
    number(value).unwrap_or(2)
}

/// What `grpc-retry-pushback-ms` asks for (gRFC A6).
pub(super) enum Pushback {
    Millis(u64),
    /// The number is negative, or can't be read.
    Never,
}

pub(super) fn pushback(headers: &HeaderMap) -> Option<Pushback> {
    let value = headers.get("grpc-retry-pushback-ms")?;
    Some(number(value).map_or(Pushback::Never, Pushback::Millis))
}

fn number<T: std::str::FromStr>(value: &HeaderValue) -> Option<T> {
    value.to_str().ok()?.parse().ok()
}
