//! With feature `tracing`, a detached run is inside the span of its request.
#![cfg(all(feature = "memory", feature = "tracing"))]
mod support;

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use http::{Request, StatusCode};
use support::{Body, post, probe::answer, send};
use tower::{Layer, service_fn};
use tower_idempotency::{IdempotencyLayer, MemoryStore, RequestBody, ScopeBy};
use tracing::{Instrument, Metadata, Span, span, subscriber::Subscriber};
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
