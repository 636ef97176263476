use std::{future::pending, time::Duration};

use axum::{
    Router,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use metrics_exporter_prometheus::PrometheusHandle;
use tower_idempotency::{IdempotencyLayer, OnInFlight, OnStoreFailure, Outcome, ScopeBy, Verdict};

use crate::store::SwitchedStore;

pub(crate) fn router(metrics: PrometheusHandle) -> Router {
    let store = SwitchedStore::new();
    let idempotency = IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
        .require_key()
        .with_run_limit(Duration::from_secs(2))
        .with_store_call_limit(Duration::from_secs(1))
        .with_on_in_flight(OnInFlight::Wait(Duration::from_millis(500)))
        .with_observer(|observation| {
            // For what no counter can hold: here, which record somebody should look at.
            if observation.outcome() == Outcome::Abandoned {
                eprintln!("a run of {:?} failed", observation.record_key());
            }
        });
    let unprotected = idempotency
        .clone()
        .with_on_store_failure(OnStoreFailure::RunUnprotected);
    Router::new()
        .route("/charges", post(charge).layer(idempotency))
        .route("/quotes", post(charge).layer(unprotected))
        .route("/store/{state}", post(SwitchedStore::switch))
        .with_state(store)
        // Without the layer: a scrape is no request to be protected.
        .route("/metrics", get(async move || metrics.render()))
}

/// Charges what stands in for a card: how it ends.
#[expect(clippy::panic, reason = "to see what becomes of it")]
async fn charge(card: String) -> Response {
    let charged = StatusCode::CREATED;
    match card.as_str() {
        "slow" => tokio::time::sleep(Duration::from_secs(1)).await,
        "hangs" => pending().await,
        "panic" => panic!("a card that panics"),
        "declined" => return StatusCode::PAYMENT_REQUIRED.into_response(),
        "error" => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "statement" => return (charged, Verdict::Tombstone, "a statement").into_response(),
        "conflict" => return (StatusCode::CONFLICT, Verdict::Conflict, "lost").into_response(),
        _ => {}
    }
    (charged, format!("charged {card}")).into_response()
}
