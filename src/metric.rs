//! What is counted and timed with feature `metrics`; without it these functions are empty. `docs/observability.md` has the
//! table. No label holds anything that a client sends.

#[cfg(feature = "metrics")]
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use tokio::time::{Instant, error::Elapsed};

use crate::{Observation, StoreError};
#[cfg(feature = "metrics")]
use crate::{Outcome, StoreErrorKind};

pub(crate) const IN_FLIGHT_RUNS: &str = "tower_idempotency_in_flight_runs";
pub(crate) const WAITING: &str = "tower_idempotency_waiting";
pub(crate) const OWED_SETTLEMENTS: &str = "tower_idempotency_owed_settlements";
pub(crate) const OWED_BYTES: &str = "tower_idempotency_owed_bytes";
pub(crate) const LATE_CALLS: &str = "tower_idempotency_late_store_calls";
#[cfg(feature = "metrics")]
const REQUESTS: &str = "tower_idempotency_requests_total";
#[cfg(feature = "metrics")]
const STORE_CALL: &str = "tower_idempotency_store_call_seconds";
#[cfg(feature = "metrics")]
const HANDLER: &str = "tower_idempotency_handler_seconds";

/// Describes all of them, and starts the counters and gauges at zero: a rate doesn't see the step from nothing to one.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    {
        describe_counter!(
            REQUESTS,
            Unit::Count,
            "Keyed requests by what became of them."
        );
        describe_histogram!(STORE_CALL, Unit::Seconds, "Waits for a call of the store.");
        describe_histogram!(
            HANDLER,
            Unit::Seconds,
            "Run time of the handler, by keyed request."
        );
        for (name, unit, description) in [
            (
                IN_FLIGHT_RUNS,
                Unit::Count,
                "Runs of the handler that are not settled yet.",
            ),
            (
                WAITING,
                Unit::Count,
                "Requests that wait for another run of their key.",
            ),
            (
                OWED_SETTLEMENTS,
                Unit::Count,
                "Settlements that the store has not heard of yet.",
            ),
            (
                OWED_BYTES,
                Unit::Bytes,
                "The size of the responses among them.",
            ),
            (
                LATE_CALLS,
                Unit::Count,
                "Calls of the store that go on after their limit.",
            ),
        ] {
            describe_gauge!(name, unit, description);
            gauge!(name).increment(0.0);
        }
        for outcome in Outcome::all() {
            counter!(REQUESTS, "outcome" => outcome.as_str()).increment(0);
        }
    }
}

#[cfg_attr(
    not(feature = "metrics"),
    expect(unused_variables, reason = "it is for the metrics")
)]
pub(crate) fn request(observation: &Observation) {
    #[cfg(feature = "metrics")]
    {
        counter!(REQUESTS, "outcome" => observation.outcome.as_str()).increment(1);
        if let Some(time) = observation.handler_time {
            histogram!(HANDLER).record(time);
        }
    }
}

/// When a call of the store was started, if that is of interest.
pub(crate) fn now() -> Option<Instant> {
    cfg!(feature = "metrics").then(Instant::now)
}

/// A wait for the store came to an end, by the call's own or by its limit.
#[cfg_attr(
    not(feature = "metrics"),
    expect(unused_variables, reason = "they are for the metrics")
)]
pub(crate) fn store_call<T>(
    call: &'static str,
    started: Option<Instant>,
    waited: &Result<Result<T, StoreError>, Elapsed>,
) {
    #[cfg(feature = "metrics")]
    if let Some(started) = started {
        let result = match waited {
            Ok(Ok(_)) => "ok",
            Ok(Err(error)) => label(error.kind()),
            Err(_elapsed) => "limit",
        };
        histogram!(STORE_CALL, "call" => call, "result" => result).record(started.elapsed());
    }
}

#[cfg(feature = "metrics")]
fn label(kind: StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::LostClaim => "lost_claim",
        StoreErrorKind::RolledBack => "rolled_back",
        StoreErrorKind::Conflict => "conflict",
        StoreErrorKind::Misused => "misused",
        StoreErrorKind::OutcomeUnknown => "outcome_unknown",
        StoreErrorKind::Full => "full",
        StoreErrorKind::Unavailable => "unavailable",
        StoreErrorKind::Other => "other",
    }
}

/// What a gauge has more until this is dropped, however that comes about.
pub(crate) struct Gauged {
    /// Kept, so that the same one goes down again.
    #[cfg(feature = "metrics")]
    gauge: metrics::Gauge,
    #[cfg(feature = "metrics")]
    amount: f64,
}

impl Gauged {
    pub(crate) fn one(gauge: &'static str) -> Self {
        Self::many(gauge, 1)
    }

    #[cfg_attr(
        not(feature = "metrics"),
        expect(unused_variables, reason = "they are for the metrics")
    )]
    pub(crate) fn many(gauge: &'static str, amount: usize) -> Self {
        let gauged = Self {
            #[cfg(feature = "metrics")]
            gauge: gauge!(gauge),
            #[cfg(feature = "metrics")]
            amount: amount as f64,
        };
        #[cfg(feature = "metrics")]
        gauged.gauge.increment(gauged.amount);
        gauged
    }
}

#[cfg(feature = "metrics")]
impl Drop for Gauged {
    fn drop(&mut self) {
        self.gauge.decrement(self.amount);
    }
}
