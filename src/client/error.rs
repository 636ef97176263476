use std::{error, fmt};

use super::GaveUp;
use crate::{IdempotencyKey, InvalidKey, error::BoxError};

/// A call without an answer: its last attempt ended without one, or nothing was sent.
///
/// The error of the wrapped service is kept as the [source](error::Error::source). When retries are used up on a status, the call
/// ends with that response and not with an error.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    source: Option<BoxError>,
    key: Option<IdempotencyKey>,
    attempts: u32,
    unknown: bool,
    gave_up: Option<GaveUp>,
}

impl Error {
    /// What went wrong at last.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The key that all attempts had, to resume the call with. None if there was none, or none that can be sent.
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.key.as_ref()
    }

    /// How often the request was sent.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether the operation may have taken effect, as one attempt may have arrived: resume it with the same key (see
    /// [`Resumed`](super::Resumed)), or find out by other means; don't use a new key. If false, nothing happened.
    ///
    /// Nobody can tell a connection that was never made from one that broke, for any client: also then it is true.
    #[must_use]
    pub fn outcome_is_unknown(&self) -> bool {
        self.unknown
    }

    /// Why there was no further attempt, if the policy would have made one.
    #[must_use]
    pub fn gave_up(&self) -> Option<GaveUp> {
        self.gave_up
    }

    pub(super) fn new(kind: ErrorKind, source: Option<BoxError>) -> Self {
        Self {
            kind,
            source,
            key: None,
            attempts: 0,
            unknown: false,
            gave_up: None,
        }
    }

    /// Of a request that passed through.
    pub(super) fn passed(source: BoxError) -> Self {
        Self {
            attempts: 1,
            unknown: true,
            ..Self::new(ErrorKind::Service, Some(source))
        }
    }

    /// Of a request whose key can't be sent. Where it was sent before, that tells nothing of what came of it.
    pub(super) fn unsent(invalid: InvalidKey, resumed: bool) -> Self {
        Self {
            unknown: resumed,
            ..Self::new(ErrorKind::InvalidKey, Some(invalid.into()))
        }
    }

    pub(super) fn after(
        self,
        key: IdempotencyKey,
        attempts: u32,
        unknown: bool,
        gave_up: Option<GaveUp>,
    ) -> Self {
        Self {
            key: Some(key),
            attempts,
            unknown,
            gave_up,
            ..self
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ErrorKind::InvalidKey => "the idempotency key of the request can't be sent",
            ErrorKind::KeyTooOld => "the idempotency key is too old to be sent",
            ErrorKind::RequestBody => "the request's body failed",
            ErrorKind::Service => "the request failed",
            ErrorKind::Timeout => "the request was not answered in time",
        })?;
        match self.attempts {
            0 => f.write_str(", nothing was sent"),
            1 => f.write_str(", after one attempt"),
            attempts => write!(f, ", after {attempts} attempts"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The key in the request's header is malformed, there are two, or the extensions have another one; or the request is
    /// [resumed](super::Resumed), and has none. Nothing was sent.
    InvalidKey,
    /// The key is older than [allowed](super::IdempotentRetryLayer::with_max_key_age), and is not sent any more.
    KeyTooOld,
    /// The request's body failed before it was sent.
    RequestBody,
    /// The wrapped service failed, or the body of its answer did.
    Service,
    /// There was no answer in time: to the last attempt, or before anything could be sent.
    Timeout,
}
