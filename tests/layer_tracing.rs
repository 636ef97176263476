//! With feature `tracing`, a detached run is inside the span of its request, and an operator hears of retries.
#![cfg(all(feature = "memory", feature = "tracing"))]
mod support;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use http::{Request, StatusCode};
use support::{
    Body,
    database::{Database, End},
    post,
    probe::{Probe, answer},
    send,
};
use tower::{Layer, service_fn};
use tower_idempotency::{IdempotencyLayer, MemoryStore, RequestBody, ScopeBy};
use tracing::{
    Event, Instrument, Metadata, Span,
    field::{Field, Visit},
    span,
    subscriber::Subscriber,
};
use tracing_core::span::Current;

/// Knows which span is entered, and nothing else.
#[derive(Default)]
struct Entered {
    last: AtomicU64,
    spans: Mutex<Vec<(span::Id, &'static Metadata<'static>)>>,
    stack: Mutex<Vec<span::Id>>,
}

impl Subscriber for Entered {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let id = span::Id::from_u64(self.last.fetch_add(1, Ordering::SeqCst) + 1);
        let mut spans = self.spans.lock().expect("a lock");
        spans.push((id.clone(), span.metadata()));
        id
    }

    fn enter(&self, span: &span::Id) {
        self.stack.lock().expect("a lock").push(span.clone());
    }

    fn exit(&self, _: &span::Id) {
        self.stack.lock().expect("a lock").pop();
    }

    fn current_span(&self) -> Current {
        let stack = self.stack.lock().expect("a lock");
        let spans = self.spans.lock().expect("a lock");
        let current = stack
            .last()
            .and_then(|id| spans.iter().find(|(span, _)| span == id));
        current.map_or_else(Current::none, |(id, metadata)| {
            Current::new(id.clone(), metadata)
        })
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
}

#[tokio::test]
async fn a_run_is_inside_the_span_of_its_request_also_when_spawned_by_a_closure() {
    let _guard = tracing::subscriber::set_default(Entered::default());
    let layer = || IdempotencyLayer::new(MemoryStore::new(), ScopeBy::single_tenant());
    let layers = [
        layer(),
        layer().with_detached(false),
        layer().with_spawn(|run| drop(tokio::spawn(run))),
    ];
    for layer in layers {
        let service = layer.layer(service_fn(|_: Request<RequestBody<Body>>| async {
            let span = Span::current();
            let name = span.metadata().map_or("none", |metadata| metadata.name());
            Ok::<_, &'static str>(answer(StatusCode::CREATED, name))
        }));
        let request = async { send(&service, post("k", "{}")).await };
        let answer = request.instrument(tracing::info_span!("charge")).await;
        assert_eq!(answer.text(), "charge");
    }
}

/// The numbers of the retries that were reported.
#[derive(Default)]
struct Retries(Arc<Mutex<Vec<u64>>>);

impl Visit for Retries {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "retry" {
            self.0.lock().expect("a lock").push(value);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for Retries {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Self(Arc::clone(&self.0)));
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn each_retry_is_reported() {
    let retries = Retries::default();
    let reported = Arc::clone(&retries.0);
    let _guard = tracing::subscriber::set_default(retries);
    let (database, probe) = (Database::new(), Probe::new());
    database.lose(End::Complete, 2);
    let service = IdempotencyLayer::new(database, ScopeBy::single_tenant())
        .with_transaction_retries(3)
        .layer(probe.service::<Body>());
    assert_eq!(send(&service, post("k", "{}")).await.text(), "run 3");
    assert_eq!(*reported.lock().expect("a lock"), [1, 2]);
}
