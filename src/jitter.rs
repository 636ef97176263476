//! Random times, so that many who do the same thing don't do it at once.

use std::{ops::RangeInclusive, time::Duration};

use uuid::Uuid;

/// A random time within these bounds.
pub(crate) fn within(bounds: RangeInclusive<Duration>) -> Duration {
    // The last four bytes of a UUID of version 4 are all random.
    let [.., a, b, c, d] = Uuid::new_v4().into_bytes();
    let part = f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX);
    let (start, end) = bounds.into_inner();
    start + end.saturating_sub(start).mul_f64(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_times_are_within_their_bounds_and_differ() {
        let (start, end) = (Duration::from_millis(5), Duration::from_millis(10));
        let times: Vec<_> = (0..1_000).map(|_| within(start..=end)).collect();
        assert!(times.iter().all(|time| (start..=end).contains(time)));
        for (from, to) in [(5, 6), (7, 8), (9, 10)] {
            let part = Duration::from_millis(from)..=Duration::from_millis(to);
            assert!(times.iter().any(|time| part.contains(time)));
        }
        assert_eq!(within(end..=end), end);
    }
}
