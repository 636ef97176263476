use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::{StoreError, StoreErrorKind};

/// The driver's error, as the layer understands it.
pub(super) fn failed(error: RedisError) -> StoreError {
    StoreError::new(kind(&error), error)
}

fn kind(error: &RedisError) -> StoreErrorKind {
    let is_away = matches!(
        error.kind(),
        ErrorKind::Io
            | ErrorKind::ClusterConnectionNotFound
            | ErrorKind::Server(
                ServerErrorKind::BusyLoading
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::TryAgain
            )
    );
    match error.code() {
        Some("OOM") => StoreErrorKind::Full,
        // Somebody's script has been running for seconds.
        Some("BUSY") => StoreErrorKind::Unavailable,
        _ if is_away => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    }
}

/// Whether the connection is gone, or leads to what is a replica by now: another one may do better.
pub(super) fn is_lost(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// Whether the server doesn't know the script.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
