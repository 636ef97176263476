//! How long a key is blocked by a run that died.

use std::{sync::Mutex, time::Duration};

use http::StatusCode;
use tokio::time::Instant;

use crate::server::{Answer, Unanswered};

/// The requests under one key. Nobody else sends any, so that the runs under it are theirs.
#[derive(Default)]
pub(crate) struct Requests(Mutex<State>);

#[derive(Default)]
struct State {
    sent: u32,
    in_the_air: u32,
    /// When a request was last seen to break off, or to get the answer of a store in trouble: until then it may have run.
    lost: Option<Instant>,
}

/// A request that was sent.
pub(crate) struct Sent {
    number: u32,
    alone: bool,
    at: Instant,
}

impl Requests {
    pub(crate) fn send(&self) -> Sent {
        let mut state = self.0.lock().expect("the state");
        state.sent += 1;
        state.in_the_air += 1;
        Sent {
            number: state.sent,
            alone: state.in_the_air == 1,
            at: Instant::now(),
        }
    }

    /// How long no run can have been alive when this request was sent, which was told that there is one. Zero if one can: another
    /// request was in the air, or none was lost.
    pub(crate) fn answered(&self, sent: &Sent, answer: &Result<Answer, Unanswered>) -> Duration {
        let mut state = self.0.lock().expect("the state");
        state.in_the_air -= 1;
        match answer.as_ref().map(|answer| answer.status) {
            Ok(StatusCode::CONFLICT) if sent.alone && sent.number == state.sent => {
                state.lost.map_or(Duration::ZERO, |lost| {
                    sent.at.saturating_duration_since(lost)
                })
            }
            Ok(StatusCode::CONFLICT) | Err(Unanswered::NotSent) => Duration::ZERO,
            Ok(StatusCode::SERVICE_UNAVAILABLE) | Err(Unanswered::Broken) => {
                state.lost = Some(Instant::now());
                Duration::ZERO
            }
            // The key has its answer; a store that has not heard of it yet still says that it runs.
            Ok(_) => {
                state.lost = None;
                Duration::ZERO
            }
        }
    }
}
