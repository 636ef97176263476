use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, response::Parts};
use serde_json::Value;

use super::{Decision, meaning::Meaning};
use crate::{content_type, grpc::Protocol};

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

    /// The number in `grpc-status`, from the head or the trailers, if it is the answer to a gRPC call and has come. Where it is told more
    /// than once, it is 0 only if nothing says otherwise; 2 (UNKNOWN) where it is missing, as it is for every gRPC client.
    #[must_use]
    pub fn grpc_status(&self) -> Option<i32> {
        self.reading.grpc_status
    }

    /// The `code` of a problem document (RFC 9457) that isn't too large; of a gRPC call's answer, the metadata `idempotency-code`. Our
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
        if self.reading.unread {
            return Meaning::Unclear;
        }
        match self.grpc_status() {
            Some(status) => Meaning::of_grpc(status, self.code()),
            None => Meaning::of_http(self.status(), self.code()),
        }
    }

    pub(super) fn decision(&self) -> Decision {
        match self.reading.pushback {
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
    pub(super) pushback: Option<Pushback>,
    /// What it says of the operation is in a part that was not read, or can't be.
    unread: bool,
}

impl Reading {
    /// Of the answer to a request that speaks this. `data` and `trailers` are there if the body was collected.
    pub(super) fn of(
        protocol: Protocol,
        head: &Parts,
        data: Option<&[u8]>,
        trailers: Option<&HeaderMap>,
        replay_marker: &HeaderName,
    ) -> Self {
        let headers = &head.headers;
        let grpc = [protocol, Protocol::of(headers)].contains(&Protocol::Grpc)
            && head.status == StatusCode::OK;
        let problem: Option<Value> = data
            .filter(|_| !grpc && is_problem(headers))
            .and_then(|data| serde_json::from_slice(data).ok());
        // Metadata comes in either: a proxy may turn the one into the other.
        let metadata = || [Some(headers), trailers].into_iter().flatten();
        let grpc_status = match grpc {
            true => grpc_status(metadata(), data.is_some()),
            false => None,
        };
        let code = match grpc {
            true => metadata()
                .find_map(|map| map.get("idempotency-code"))
                .and_then(|code| code.to_str().ok()),
            false => problem
                .as_ref()
                .and_then(|problem| problem.get("code")?.as_str()),
        };
        Self {
            replay: headers
                .get(replay_marker)
                .is_some_and(|value| value == "true"),
            grpc_status,
            code: code.map(str::to_owned),
            pushback: metadata().find_map(pushback),
            unread: match grpc {
                true => grpc_status.is_none(),
                // It may be one that is in flight, or of unknown outcome. Compressed for a layer outside of this one, it isn't JSON.
                false => {
                    head.status == StatusCode::CONFLICT && is_problem(headers) && problem.is_none()
                }
            },
        }
    }
}

pub(super) fn is_problem(headers: &HeaderMap) -> bool {
    content_type::starts_with(headers, b"application/problem+json")
}

/// One that can't be read is UNKNOWN, as gRPC has it, and so is one that didn't come by the end.
fn grpc_status<'a>(metadata: impl Iterator<Item = &'a HeaderMap>, ended: bool) -> Option<i32> {
    metadata
        .flat_map(|map| map.get_all("grpc-status"))
        .map(|value| number(value).unwrap_or(UNKNOWN))
        .reduce(|before, next| if before == 0 { next } else { before })
        .or(ended.then_some(UNKNOWN))
}

const UNKNOWN: i32 = 2;

/// What `grpc-retry-pushback-ms` asks for (gRFC A6).
#[derive(Clone, Copy, Debug)]
pub(super) enum Pushback {
    Millis(u64),
    /// The number is negative, or can't be read.
    Never,
}

fn pushback(metadata: &HeaderMap) -> Option<Pushback> {
    let value = metadata.get("grpc-retry-pushback-ms")?;
    Some(number(value).map_or(Pushback::Never, Pushback::Millis))
}

fn number<T: std::str::FromStr>(value: &HeaderValue) -> Option<T> {
    value.to_str().ok()?.parse().ok()
}
