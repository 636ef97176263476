use std::{error::Error, fmt};

use crate::{StoreError, StoreErrorKind};

/// What a failure is that the database itself didn't tell of: mostly, there was none to ask.
pub(crate) fn unanswered(error: sqlx::Error) -> StoreError {
    let is_unreachable = matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::BeginFailed
    );
    let kind = if is_unreachable {
        StoreErrorKind::Unavailable
    } else {
        StoreErrorKind::Other
    };
    StoreError::new(kind, error)
}

/// A failure that doesn't say by itself what to do about it.
pub(crate) fn explained(what: &'static str, source: sqlx::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Other, Explained { what, source })
}

#[derive(Debug)]
struct Explained {
    what: &'static str,
    source: sqlx::Error,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)
    }
}

impl Error for Explained {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}
