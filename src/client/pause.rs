use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, header};

use super::answer::Pushback;
use crate::jitter;

/// The pause before a retry: what the server asked for, and a random time besides, or all who were told the same would come back at
/// once. `attempts` were made so far.
pub(super) fn pause(
    asked: Duration,
    attempts: u32,
    first: Duration,
    longest: Duration,
) -> Duration {
    let doubled = first.saturating_mul(2_u32.saturating_pow(attempts.saturating_sub(1)));
    asked.saturating_add(jitter::within(Duration::ZERO..=doubled.min(longest)))
}

/// The least that the server asks for.
pub(super) fn asked(headers: &HeaderMap, pushback: Option<Pushback>) -> Duration {
    match pushback {
        Some(Pushback::Millis(millis)) => Duration::from_millis(millis),
        Some(Pushback::Never) | None => retry_after(headers).unwrap_or_default(),
    }
}

/// `Retry-After` in either form (RFC 9110 section 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // One that doesn't even fit into the number is longer than any deadline.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    // By the clock that made the date, wherever it says what it shows.
    let now = date(headers, header::DATE).unwrap_or_else(local_time);
    Some(until.duration_since(now).unwrap_or_default())
}

fn date(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    let value = headers.get(name)?.to_str().ok()?;
    httpdate::parse_http_date(value).ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a server that says no time of its own leaves only ours to compare its date with, and a key ages while the machine is suspended"
)]
pub(super) fn local_time() -> SystemTime {
    SystemTime::now()
}
