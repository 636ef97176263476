//! Tables of promises: what is expected is a text, and so is what came about.

use tower_idempotency::store::{Record, RecordState};

use crate::{network::side_by_side, support::Answer};

/// What a client sees of an answer: `201 run 1`, `201 run 1, replayed`, `503 not_committed`.
pub fn seen(answer: &Answer) -> String {
    let status = answer.status().as_u16();
    match answer.rejection() {
        Some(kind) => {
            let problem: serde_json::Value =
                serde_json::from_slice(&answer.body).expect("a problem in JSON");
            assert_eq!(problem["code"], kind.code());
            assert_eq!(problem["status"], status);
            format!("{status} {kind}")
        }
        None if answer.is_replay() => format!("{status} {}, replayed", answer.text()),
        None => format!("{status} {}", answer.text()),
    }
}

/// What a record says.
pub fn recorded(record: Option<Record>) -> String {
    match record.map(|record| record.state) {
        None => "none".to_owned(),
        Some(RecordState::Completed(saved)) => saved
            .status()
            .map_or("tombstone".to_owned(), |status| status.as_str().to_owned()),
        Some(RecordState::InFlight { .. }) => "in flight".to_owned(),
        Some(RecordState::Unknown) => "unknown".to_owned(),
        Some(state) => format!("{state:?}"),
    }
}

/// Lets these come about side by side, and compares them with what was promised: a heading, then a line for each, but for those
/// that don't apply.
///
/// # Panics
///
/// Panics where they differ, with the table as it should read.
pub async fn assert_kept<F>(
    promises: &str,
    applies: impl Fn(&str) -> bool,
    lines: impl IntoIterator<Item = F>,
) where
    F: Future<Output = String> + Send + 'static,
{
    let kept = side_by_side(lines).await;
    let kept: Vec<_> = kept.iter().map(|line| line.trim_end()).collect();
    let promised = promises.trim().lines().skip(1).map(str::trim_end);
    let promised: Vec<_> = promised.filter(|line| applies(line)).collect();
    let broken = kept.iter().filter(|line| !promised.contains(line));
    let broken: Vec<_> = broken.copied().collect();
    assert!(
        promised == kept,
        "broken:\n{}\n\nall:\n{}",
        broken.join("\n"),
        kept.join("\n")
    );
}
