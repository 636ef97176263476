//! Pauses, limits and what they cap: `Retry-After`, backoff, budget, deadline, attempt timeout.
#![cfg(feature = "client")]

mod client_support;

use std::time::{Duration, SystemTime};

use client_support::{Step, Wire, answer, delivery, post, send, status, with_headers};
use http::StatusCode;
use tokio::time::Instant;
use tower_idempotency::client::{ErrorKind, GaveUp, IdempotentRetryLayer};

const MILLISECOND: Duration = Duration::from_millis(1);

/// Pauses of at most a millisecond, so that what the server asks for stands out.
fn hurried() -> IdempotentRetryLayer {
    IdempotentRetryLayer::new().with_backoff(MILLISECOND, MILLISECOND)
}

/// How long the pause after this answer was, and why there was no second attempt.
async fn pause_after(step: Step) -> (Duration, Option<GaveUp>) {
    let wire = Wire::new([step]);
    let begin = Instant::now();
    let response = send(&hurried(), &wire, post("{}"))
        .await
        .expect("a response");
    (begin.elapsed(), delivery(&response).gave_up())
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A date so long after a certain one.
fn date(after: u64) -> String {
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + seconds(1_800_000_000 + after))
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_the_least_that_a_pause_takes_in_both_forms() {
    let (now, later, earlier) = (date(0), date(7), date(0));
    for (headers, least) in [
        (&[("retry-after", "3")][..], seconds(3)),
        (&[("retry-after", "0")], Duration::ZERO),
        (&[("retry-after", "-3")], Duration::ZERO),
        (&[("retry-after", "1.5")], Duration::ZERO),
        (&[("retry-after", "soon")], Duration::ZERO),
        (&[("retry-after", "")], Duration::ZERO),
        // Against the server's own clock, which is years from ours.
        (&[("date", &now), ("retry-after", &later)], seconds(7)),
        (
            &[("date", &later), ("retry-after", &earlier)],
            Duration::ZERO,
        ),
    ] {
        for status in [429, 503, 500] {
            let (pause, gave_up) = pause_after(with_headers(status, headers)).await;
            assert!(
                (least..=least + 2 * MILLISECOND).contains(&pause),
                "{headers:?}: {pause:?}"
            );
            assert_eq!(gave_up, None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_date_without_the_servers_own_is_compared_with_our_clock() {
    #[expect(clippy::disallowed_methods, reason = "that is the clock in question")]
    let until = SystemTime::now() + seconds(20);
    let until = httpdate::fmt_http_date(until);
    let (pause, gave_up) = pause_after(with_headers(503, &[("retry-after", &until)])).await;
    // Dates have whole seconds, and this machine may be slow.
    assert!((seconds(5)..=seconds(21)).contains(&pause), "{pause:?}");
    assert_eq!(gave_up, None);
}

#[tokio::test(start_paused = true)]
async fn pushback_is_the_least_that_a_pause_takes_for_grpc() {
    let headers = [
        ("content-type", "application/grpc"),
        ("grpc-status", "14"),
        ("grpc-retry-pushback-ms", "2500"),
    ];
    let (pause, _) = pause_after(with_headers(200, &headers)).await;
    let least = Duration::from_millis(2500);
    assert!(
        (least..=least + 2 * MILLISECOND).contains(&pause),
        "{pause:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pause_beyond_the_deadline_is_not_waited_for() {
    for value in [
        "60",
        "61",
        "18446744073709551615",
        "99999999999999999999999",
    ] {
        let (pause, gave_up) = pause_after(with_headers(503, &[("retry-after", value)])).await;
        assert_eq!(
            (pause, gave_up),
            (Duration::ZERO, Some(GaveUp::Deadline)),
            "{value}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_are_random_up_to_a_bound_that_doubles() {
    let (first, longest) = (Duration::from_millis(100), Duration::from_millis(300));
    let layer = IdempotentRetryLayer::new()
        .with_backoff(first, longest)
        .with_retry_budget(1_000_000, 0.0);
    let mut pauses: [Vec<Duration>; 4] = Default::default();
    for _ in 0..200 {
        let wire = Wire::new((0..4).map(|_| Step::Fail));
        send(&layer, &wire, post("{}")).await.expect("a response");
        let seen = wire.seen();
        for (pauses, attempts) in pauses.iter_mut().zip(seen.windows(2)) {
            pauses.push(attempts[1].at - attempts[0].at);
        }
    }
    for (pauses, bound) in pauses.iter().zip([100, 200, 300, 300]) {
        let bound = Duration::from_millis(bound);
        // The clock of a paused runtime goes in whole milliseconds.
        assert!(pauses.iter().all(|pause| *pause <= bound + MILLISECOND));
        for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
            let part = bound * from / 4..=bound * to / 4;
            assert!(pauses.iter().any(|pause| part.contains(pause)), "{part:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn clones_of_the_layer_share_a_budget_that_calls_fill() {
    let layer = hurried().with_retry_budget(0, 0.5);
    let clone = layer.clone();
    let wire = Wire::new((0..8).map(|_| answer(503)));
    let mut budgets = Vec::new();
    for call in 0..4 {
        let layer = if call % 2 == 0 { &layer } else { &clone };
        let response = send(layer, &wire, post("{}")).await.expect("a response");
        budgets.push(delivery(&response).gave_up());
    }
    // One retry for two calls.
    assert_eq!(wire.count(), 4 + 2);
    assert!(
        budgets
            .iter()
            .all(|gave_up| *gave_up == Some(GaveUp::Budget))
    );

    let fresh = hurried().with_retry_budget(0, 1000.0);
    let response = send(&fresh, &wire, post("{}")).await.expect("a response");
    assert_eq!(response.status(), StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_ends_with_its_timeout_and_a_late_answer_is_not_waited_for() {
    let late = Step::Late(seconds(3), status(200));
    let in_time = Step::Late(Duration::from_millis(1900), status(202));
    let wire = Wire::new([Step::Hang, late, in_time]);
    let layer = hurried().with_attempt_timeout(seconds(2));
    let begin = Instant::now();

    let response = send(&layer, &wire, post("{}")).await.expect("a response");

    assert_eq!(response.status(), 202);
    assert_eq!(delivery(&response).attempts(), 3);
    let expected = Duration::from_millis(5900);
    assert!((expected..expected + 5 * MILLISECOND).contains(&begin.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_the_call_in_the_middle_of_an_attempt() {
    let wire = Wire::new([Step::Hang, Step::Hang, Step::Hang]);
    let layer = hurried()
        .with_attempt_timeout(seconds(2))
        .with_deadline(seconds(5));
    let begin = Instant::now();

    let error = send(&layer, &wire, post("{}")).await.expect_err("an error");

    assert_eq!(begin.elapsed(), seconds(5));
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::Timeout, 3));
    assert_eq!(error.gave_up(), Some(GaveUp::Deadline));
    assert!(error.outcome_is_unknown());
    assert_eq!(error.key().expect("a key").as_str(), wire.seen()[0].key());
}

#[tokio::test(start_paused = true)]
async fn a_short_deadline_shortens_the_default_timeout_of_an_attempt() {
    let wire = Wire::new([Step::Hang]);
    let layer = IdempotentRetryLayer::new().with_deadline(seconds(1));
    let begin = Instant::now();
    let error = send(&layer, &wire, post("{}")).await.expect_err("an error");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(begin.elapsed(), seconds(1));
}

#[tokio::test(start_paused = true)]
async fn an_error_at_last_tells_key_attempts_and_source() {
    let wire = Wire::new([Step::Fail, answer(503), Step::Fail]);
    let layer = hurried().with_attempts(3);
    let error = send(&layer, &wire, post("{}")).await.expect_err("an error");
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::Service, 3));
    assert_eq!(error.gave_up(), Some(GaveUp::Attempts));
    assert_eq!(error.to_string(), "the request failed, after 3 attempts");
    let source = std::error::Error::source(&error).expect("a source");
    assert!(source.is::<client_support::Lost>());
}
