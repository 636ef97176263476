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
    match code(error).as_deref() {
        Some("OOM") => StoreErrorKind::Full,
        // Somebody's script has been running for seconds.
        Some("BUSY") => StoreErrorKind::Unavailable,
        _ if is_away => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    }
}

/// The server's own code, also of the first command that failed of several.
fn code(error: &RedisError) -> Option<String> {
    if let Some(code) = error.code() {
        return Some(code.to_owned());
    }
    let errors = error.clone().into_server_errors()?;
    errors.first().map(|(_, error)| error.code().to_owned())
}

/// Whether the connection is gone.
pub(super) fn is_lost(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
}

/// Whether the connection leads to what is a replica by now: another one may lead elsewhere.
pub(super) fn is_read_only(error: &RedisError) -> bool {
    code(error).as_deref() == Some("READONLY")
}

/// Whether the server doesn't know the script.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
