use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::sync::watch;

use crate::api::Shop;

/// Where charges wait, in the middle of their transactions, while it is closed. To see what a page does meanwhile.
#[derive(Clone, Default)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    pub(crate) async fn pass(&self) {
        let mut closed = self.0.subscribe();
        // An error would say that the gate is gone, and `self` is one.
        drop(closed.wait_for(|closed| !closed).await);
    }
}

/// Nothing for a shop that sells something: only with `HOLD`.
pub(crate) fn router() -> Router<Shop> {
    let close = async |State(gate): State<Gate>| {
        gate.0.send_replace(true);
        StatusCode::NO_CONTENT
    };
    let open = async |State(gate): State<Gate>| {
        gate.0.send_replace(false);
        StatusCode::NO_CONTENT
    };
    // Each that waits is a receiver.
    let waiting = async |State(gate): State<Gate>| gate.0.receiver_count().to_string();
    Router::new().route("/hold", get(waiting).put(close).delete(open))
}
