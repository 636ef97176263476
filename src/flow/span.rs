//! The span of a keyed request, with feature `tracing`; without it there is none.

use crate::{Observation, RecordKey};

/// From the time when the key is known to the end of the run, also of one whose caller has gone.
#[derive(Clone)]
pub(super) struct RequestSpan(#[cfg(feature = "tracing")] tracing::Span);

#[cfg_attr(
    not(feature = "tracing"),
    expect(unused_variables, clippy::unused_self, reason = "there is no span")
)]
impl RequestSpan {
    pub(super) fn new(key: Option<&RecordKey>) -> Self {
        Self(
            #[cfg(feature = "tracing")]
            tracing::info_span!(
                target: "tower_idempotency",
                "idempotency",
                record_key = key.map(tracing::field::debug),
                attempt = tracing::field::Empty,
                outcome = tracing::field::Empty,
                store_seconds = tracing::field::Empty,
                handler_seconds = tracing::field::Empty,
            ),
        )
    }

    pub(super) fn is_enabled(&self) -> bool {
        #[cfg(feature = "tracing")]
        return !self.0.is_disabled();
        #[cfg(not(feature = "tracing"))]
        return false;
    }

    pub(super) fn record(&self, observation: &Observation) {
        #[cfg(feature = "tracing")]
        {
            let seconds = observation.store_time.as_secs_f64();
            self.0.record("store_seconds", seconds);
            self.0.record("outcome", observation.outcome.as_str());
            if let Some(attempt) = observation.attempt {
                self.0.record("attempt", attempt);
            }
            if let Some(time) = observation.handler_time {
                self.0.record("handler_seconds", time.as_secs_f64());
            }
        }
    }

    /// A future that is inside this span whenever it is polled.
    #[cfg(feature = "tracing")]
    pub(super) fn around<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        tracing::Instrument::instrument(future, self.0.clone())
    }

    #[cfg(not(feature = "tracing"))]
    pub(super) fn around<F: Future>(&self, future: F) -> F {
        future
    }
}

/// A task that goes on inside the span of those who spawn it.
#[cfg(feature = "tracing")]
pub(super) fn in_current_span<F: Future>(task: F) -> impl Future<Output = F::Output> {
    tracing::Instrument::in_current_span(task)
}

#[cfg(not(feature = "tracing"))]
pub(super) fn in_current_span<F: Future>(task: F) -> F {
    task
}
