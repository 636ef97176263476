use std::future::pending;

use tokio::signal;

/// SIGTERM or Ctrl-C.
pub(crate) async fn signal() {
    let interrupted = async {
        if signal::ctrl_c().await.is_err() {
            pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminated = async {
        match signal::unix::signal(signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = pending::<()>();
    tokio::select! {
        () = interrupted => {}
        _ = terminated => {}
    }
}
