//! A subscriber that keeps all it is told, of the one thread that it is set for.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use tracing::{
    Event, Level, Metadata,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, Subscriber},
};
use tracing_core::span::Current;

/// The subscriber. Clones share everything.
#[derive(Clone, Debug, Default)]
pub struct Capture(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    spans: Vec<Seen>,
    events: Vec<Seen>,
    entered: Vec<usize>,
}

/// A span or an event.
#[derive(Clone, Debug)]
pub struct Seen {
    pub metadata: &'static Metadata<'static>,
    /// As text; the message of an event is one of them.
    pub fields: BTreeMap<&'static str, String>,
    /// The number of the span that it is in.
    parent: Option<usize>,
}

impl Capture {
    /// Captures what this thread tells, until the guard is dropped.
    pub fn start() -> (Self, DefaultGuard) {
        let capture = Self::default();
        let guard = tracing::subscriber::set_default(capture.clone());
        (capture, guard)
    }

    /// The spans of this crate.
    pub fn requests(&self) -> Vec<Seen> {
        let inner = self.inner();
        let spans = inner.spans.iter();
        spans.filter(|span| span.is_own()).cloned().collect()
    }

    /// The events of this crate, each with its level, its message and the name of the span that it is in.
    pub fn events(&self) -> Vec<(Level, String, &'static str)> {
        let inner = self.inner();
        let own = inner.events.iter().filter(|event| event.is_own());
        own.map(|event| {
            let span = event.parent.and_then(|parent| inner.spans.get(parent));
            let span = span.map_or("none", |span| span.metadata.name());
            (*event.metadata.level(), event.field("message"), span)
        })
        .collect()
    }

    /// Of the event with this message.
    pub fn field(&self, message: &str, field: &str) -> String {
        let inner = self.inner();
        let mut events = inner.events.iter();
        let event = events.find(|event| event.field("message") == message);
        event.map(|event| event.field(field)).unwrap_or_default()
    }

    /// The names of the span that is entered and of those that it is in, from the inside out.
    pub fn current(&self) -> Vec<&'static str> {
        let inner = self.inner();
        let mut next = inner.entered.last().copied();
        let spans = std::iter::from_fn(|| {
            let span = inner.spans.get(next?)?;
            next = span.parent;
            Some(span.metadata.name())
        });
        spans.collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("a lock")
    }
}

impl Seen {
    /// Empty, if it isn't there.
    pub fn field(&self, name: &str) -> String {
        self.fields.get(name).cloned().unwrap_or_default()
    }

    fn is_own(&self) -> bool {
        self.metadata.target().starts_with("tower_idempotency")
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Capture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut inner = self.inner();
        let mut seen = Seen {
            metadata: span.metadata(),
            fields: BTreeMap::new(),
            parent: span.parent().map(number).or(inner.entered.last().copied()),
        };
        span.record(&mut seen);
        inner.spans.push(seen);
        span::Id::from_u64(inner.spans.len() as u64)
    }

    fn record(&self, span: &span::Id, values: &span::Record<'_>) {
        if let Some(span) = self.inner().spans.get_mut(number(span)) {
            values.record(span);
        }
    }

    fn event(&self, event: &Event<'_>) {
        let mut inner = self.inner();
        let mut seen = Seen {
            metadata: event.metadata(),
            fields: BTreeMap::new(),
            parent: inner.entered.last().copied(),
        };
        event.record(&mut seen);
        inner.events.push(seen);
    }

    fn enter(&self, span: &span::Id) {
        self.inner().entered.push(number(span));
    }

    fn exit(&self, span: &span::Id) {
        let left = self.inner().entered.pop();
        assert_eq!(left, Some(number(span)), "spans are left in their order");
    }

    fn current_span(&self) -> Current {
        let inner = self.inner();
        let entered = inner.entered.last();
        let span = entered.and_then(|entered| Some((*entered, inner.spans.get(*entered)?)));
        span.map_or_else(Current::none, |(number, span)| {
            Current::new(span::Id::from_u64(number as u64 + 1), span.metadata)
        })
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
}

fn number(id: &span::Id) -> usize {
    usize::try_from(id.into_u64() - 1).expect("few spans")
}
