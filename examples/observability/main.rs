//! A server whose idempotency can be watched: metrics for Prometheus, a dashboard for Grafana, alerts, and spans and events in
//! its log.
//!
//! Run with `cargo run --example observability --features axum,metrics,tracing` (`ADDR` is 127.0.0.1:3000)
//!
//! ```sh
//! curl -i localhost:3000/charges -H 'Idempotency-Key: 8e03978e' -d visa   # twice: 201 Created, then replayed
//! curl -i localhost:3000/charges -H 'Idempotency-Key: 0c7a1f52' -d error  # twice: 500, then 409 outcome_unknown
//! curl localhost:3000/metrics | grep requests_total
//! # tower_idempotency_requests_total{outcome="saved"} 1
//! # tower_idempotency_requests_total{outcome="replayed"} 1
//! # …
//! ```
//!
//! Other cards: `slow` takes a second (a duplicate waits for half of it), `hangs` runs into its limit, `declined` is 402 and not kept,
//! `statement` is done and not kept, `conflict` loses against another transaction, and `panic` panics.
//!
//! `curl -X POST localhost:3000/store/down` makes the store fail, and `/store/up` brings it back: charges are refused meanwhile,
//! `/quotes` run unprotected, and a `slow` charge that was running then is owed to the store.
//!
//! `/store/hangs` makes the store answer no more: each call of it runs into its limit, and goes on.
//!
//! To have it scraped, and the alerts loaded (in Grafana, import `dashboard.json` with that Prometheus as its data source):
//!
//! ```sh
//! prometheus --config.file=examples/observability/prometheus.yml --web.listen-address=127.0.0.1:9090 \
//!     --storage.tsdb.path=target/prometheus
//! ```

mod app;
mod store;

use std::{error::Error, time::Duration};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::net::TcpListener;
use tracing_subscriber::fmt::format::FmtSpan;

/// From a call of a store nearby to a handler that takes its time. Without buckets the exporter makes summaries, which can't be
/// added up over several servers.
const BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0,
];

const UPKEEP: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // A line for each span at its end, which is when the layer has recorded the outcome.
        .with_span_events(FmtSpan::CLOSE)
        .init();
    // Before the layers are made, so that all of their counters start at zero.
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()?;
    // What the histograms were told is kept one by one until then: without it, and without a scrape, that grows.
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    let app = app::router(metrics);
    let address = std::env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
