//! With feature `metrics`: what a Prometheus endpoint shows of the layer.
#![cfg(all(feature = "memory", feature = "metrics"))]
mod support;

use std::time::Duration;

use http::{Request, StatusCode};
use metrics::LocalRecorderGuard;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use support::{
    Body,
    faulty::{Call, Fault, FaultyStore, pass},
    handler::layer,
    post,
    probe::{Probe, answer, created, spawn_send},
    send,
};
use tokio::task::yield_now;
use tower::{Layer, service_fn};
use tower_idempotency::{
    Drain, IdempotencyLayer, MemoryStore, OnInFlight, RequestBody, Scope, ScopeBy, StoreErrorKind,
};

const GAUGES: [&str; 5] = [
    "in_flight_runs",
    "waiting",
    "owed_settlements",
    "owed_bytes",
    "late_store_calls",
];
const UNAVAILABLE: Fault = Fault::Fails(StoreErrorKind::Unavailable);

/// Records what this thread tells, until the guard is dropped.
struct Recorder(PrometheusRecorder);

impl Recorder {
    fn new() -> Self {
        let builder = PrometheusBuilder::new().set_buckets(&[0.5, 1.0, 10.0]);
        Self(builder.expect("buckets").build_recorder())
    }

    fn start(&self) -> LocalRecorderGuard<'_> {
        metrics::set_default_local_recorder(&self.0)
    }

    fn text(&self) -> String {
        self.0.handle().run_upkeep();
        self.0.handle().render()
    }

    /// Of the series of this name and these labels, without the prefix.
    fn value(&self, series: &str) -> f64 {
        let start = format!("tower_idempotency_{series} ");
        let text = self.text();
        let mut values = text.lines().filter_map(|line| line.strip_prefix(&start));
        let value = values.next();
        assert!(value.is_some(), "no {series} in\n{text}");
        value.unwrap_or_default().parse().expect("a number")
    }

    fn gauges(&self) -> [f64; 5] {
        GAUGES.map(|gauge| self.value(gauge))
    }

    /// Until a gauge has this value. Other tasks go on meanwhile.
    async fn until(&self, gauge: &str, value: f64) {
        for _ in 0..10_000 {
            if self.value(gauge) == value {
                return;
            }
            yield_now().await;
        }
        assert_eq!(self.value(gauge), value, "{gauge}");
    }
}

#[tokio::test]
async fn all_that_can_start_at_zero_is_there_from_the_start_with_its_description() {
    let recorder = Recorder::new();
    let _guard = recorder.start();
    let _service = layer(MemoryStore::new()).layer(Probe::new().service::<Body>());
    assert_eq!(recorder.gauges(), [0.0; 5]);
    for outcome in ["saved", "cancelled", "outcome_unknown", "outcome_pending"] {
        let series = format!("requests_total{{outcome=\"{outcome}\"}}");
        assert_eq!(recorder.value(&series), 0.0);
    }
    let text = recorder.text();
    for name in GAUGES.into_iter().chain(["requests_total"]) {
        let help = format!("# HELP tower_idempotency_{name} ");
        assert!(text.contains(&help), "{name} in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_by_outcome_and_calls_and_handlers_are_timed() {
    let recorder = Recorder::new();
    let _guard = recorder.start();
    let store = FaultyStore::new(MemoryStore::new());
    store.then(Call::Reserve, Fault::IsSlow(Duration::from_millis(700)));
    store
        .then_works(Call::Reserve)
        .then(Call::Reserve, Fault::Hangs);
    let handler = service_fn(|_: Request<RequestBody<Body>>| async {
        pass(Duration::from_secs(3)).await;
        Ok::<_, &'static str>(created(1))
    });
    let service = layer(store.clone()).layer(handler);
    send(&service, post("k", "{}")).await;
    send(&service, post("k", "{}")).await;
    send(&service, post("k", "{}")).await;
    store.let_go();
    send(&service, post("", "{}")).await;

    let value = |series| recorder.value(series);
    assert_eq!(value("requests_total{outcome=\"saved\"}"), 1.0);
    assert_eq!(value("requests_total{outcome=\"replayed\"}"), 1.0);
    assert_eq!(value("requests_total{outcome=\"store_unavailable\"}"), 1.0);
    assert_eq!(value("requests_total{outcome=\"invalid_key\"}"), 1.0);
    assert_eq!(value("handler_seconds_count"), 1.0);
    assert_eq!(value("handler_seconds_sum"), 3.0);
    let calls = |call, result, part| {
        let labels = format!("{{call=\"{call}\",result=\"{result}\"}}");
        recorder.value(&format!("store_call_seconds_{part}{labels}"))
    };
    assert_eq!(calls("reserve", "ok", "count"), 2.0);
    assert_eq!(calls("reserve", "ok", "sum"), 0.7);
    assert_eq!(calls("reserve", "limit", "sum"), 5.0);
    assert_eq!(calls("complete", "ok", "count"), 1.0);
}

#[tokio::test]
async fn a_run_is_in_flight_and_its_duplicates_wait_until_they_end_however_they_do() {
    let recorder = Recorder::new();
    let _guard = recorder.start();
    let probe = Probe::new().shut();
    let service = layer(MemoryStore::new())
        .with_on_in_flight(OnInFlight::Wait(Duration::from_secs(60)))
        .layer(probe.service());
    let first = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    let waiters = [(); 2].map(|()| spawn_send(&service, post("k", "{}")));
    recorder.until("waiting", 2.0).await;
    assert_eq!(recorder.gauges(), [1.0, 2.0, 0.0, 0.0, 0.0]);
    // The callers go away: a waiter waits no more, and the run goes on.
    let [gone, stays] = waiters;
    gone.abort();
    first.abort();
    recorder.until("waiting", 1.0).await;
    assert_eq!(recorder.gauges(), [1.0, 1.0, 0.0, 0.0, 0.0]);
    probe.open();
    assert!(stays.await.expect("an answer").is_replay());
    assert_eq!(recorder.gauges(), [0.0; 5]);
}

#[tokio::test]
async fn a_run_that_panics_or_is_dropped_is_in_flight_no_more() {
    let recorder = Recorder::new();
    let _guard = recorder.start();
    let panicking = Probe::answering(|_| panic!("a handler that panics"));
    let service = layer(MemoryStore::new()).layer(panicking.service());
    send(&service, post("k", "{}")).await;
    assert_eq!(recorder.gauges(), [0.0; 5]);

    let probe = Probe::new().shut();
    let inline = layer(MemoryStore::new()).with_detached(false);
    let service = inline.layer(probe.service());
    let dropped = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    assert_eq!(recorder.gauges(), [1.0, 0.0, 0.0, 0.0, 0.0]);
    dropped.abort();
    recorder.until("in_flight_runs", 0.0).await;
    assert_eq!(recorder.value("requests_total{outcome=\"abandoned\"}"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn responses_are_owed_until_the_store_has_them() {
    let recorder = Recorder::new();
    let _guard = recorder.start();
    let store = FaultyStore::new(MemoryStore::new());
    store.always(Call::Complete, UNAVAILABLE);
    let drain = Drain::new();
    let probe = Probe::answering(|_| Ok(answer(StatusCode::CREATED, "twelve bytes")));
    let service = layer(store.clone())
        .with_drain(drain.clone())
        .layer(probe.service());
    send(&service, post("k", "{}")).await;
    send(&service, post("l", "{}")).await;
    assert_eq!(recorder.gauges(), [0.0, 0.0, 2.0, 24.0, 0.0]);
    store.heal();
    assert_eq!(drain.wait(Duration::from_secs(60)).await, 0);
    assert_eq!(recorder.gauges(), [0.0; 5]);
    assert_eq!(recorder.value("requests_total{outcome=\"owed\"}"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn calls_that_hang_are_late_from_their_limit_until_the_store_answers() {
    let recorder = Recorder::new();
    let _guard = recorder.start();
    let store = FaultyStore::new(MemoryStore::new());
    store.always(Call::Reserve, Fault::Hangs);
    let limit = Duration::from_secs(5);
    let service = layer(store.clone())
        .with_store_call_limit(limit)
        .layer(Probe::new().service());
    // One whose caller stays, and one whose caller goes away before the limit: only the store's own time counts.
    let stays = spawn_send(&service, post("k", "{}"));
    let goes = spawn_send(&service, post("l", "{}"));
    store.reached(Call::Reserve, 2).await;
    goes.abort();
    assert!(goes.await.is_err());
    pass(limit / 2).await;
    assert_eq!(recorder.value("late_store_calls"), 0.0);
    let refused = stays.await.expect("an answer");
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    pass(limit).await;
    recorder.until("late_store_calls", 2.0).await;

    store.let_go();
    store.all_calls_ended().await;
    recorder.until("late_store_calls", 0.0).await;
    assert_eq!(recorder.gauges(), [0.0; 5]);
}

#[tokio::test]
async fn nothing_that_a_client_sends_is_in_a_label() {
    let recorder = Recorder::new();
    let _guard = recorder.start();
    let scope = ScopeBy::parts(|_| Scope::new("nobody-may-read"));
    let service = IdempotencyLayer::new(MemoryStore::new(), scope).layer(Probe::new().service());
    let path = |key, path: &str| {
        let mut request = post(key, "nobody-may-read");
        *request.uri_mut() = path.parse().expect("a path");
        request
    };
    send(&service, path("nobody-may-read", "/nobody-may-read")).await;
    let before = recorder.text().lines().count();
    for key in ["nobody-may-read-a", "nobody-may-read-b"] {
        send(&service, path(key, "/nobody-may-read/2")).await;
    }
    let text = recorder.text();
    assert!(!text.contains("nobody-may-read"), "{text}");
    assert_eq!(
        text.lines().count(),
        before,
        "more requests are no more series"
    );
}
