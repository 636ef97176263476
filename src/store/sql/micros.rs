use std::time::Duration;

/// A duration as a database adds it to its own clock.
///
/// Capped at 36 000 years, so that no sum with a clock leaves the range of 64 bits, where SQLite would go on in floating point.
pub(crate) fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).map_or(LONGEST, |micros| micros.min(LONGEST))
}

/// What is left of a time span that may be over.
pub(crate) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

const LONGEST: i64 = 1 << 60;
