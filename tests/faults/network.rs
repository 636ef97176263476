//! What a network does to a statement, and until when.

use std::{panic::resume_unwind, time::Duration};

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::servers::{Fault, Proxy, Rule, Strikes};

/// Far longer than anything takes.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What becomes of a statement and of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The server never sees it; its connection is cut, and new ones are refused.
    Refused,
    /// It reaches the server only when the outage is over.
    Hangs,
    /// The server never sees it; its connection is cut.
    CutBefore,
    /// The server executes it; its connection is cut.
    CutAfter,
    /// The server executes it; the answer comes only when the outage is over.
    Swallowed,
    /// The client is cut off. The server, which doesn't know, executes it only when the outage is over.
    Late,
}

impl Outage {
    pub const ALL: [Self; 6] = [
        Self::Refused,
        Self::Hangs,
        Self::CutBefore,
        Self::CutAfter,
        Self::Swallowed,
        Self::Late,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Hangs => "hangs",
            Self::CutBefore => "cut before",
            Self::CutAfter => "cut after",
            Self::Swallowed => "swallowed",
            Self::Late => "late",
        }
    }

    /// Whether it goes on after it struck.
    pub fn lasts(self) -> bool {
        match self {
            Self::Refused | Self::Hangs | Self::Swallowed | Self::Late => true,
            Self::CutBefore | Self::CutAfter => false,
        }
    }

    /// For the next execution of a statement that contains this text.
    pub fn on(self, text: &str) -> Rule {
        let fault = match self {
            Self::Refused | Self::Hangs => Fault::Hang,
            Self::CutBefore => Fault::CutBefore,
            Self::CutAfter => Fault::CutAfter,
            Self::Swallowed => Fault::SwallowReply,
            Self::Late => Fault::CutClient,
        };
        fault.on(text)
    }

    /// To be called once the statement was struck.
    pub fn struck(self, proxy: &Proxy) {
        if self == Self::Refused {
            proxy.refuse();
        }
    }

    /// Ends the outage.
    pub async fn end(self, proxy: &Proxy, strikes: &Strikes) {
        match self {
            Self::Refused => proxy.accept(),
            Self::Hangs | Self::Swallowed => proxy.resume(),
            Self::Late => {
                proxy.resume();
                strikes.struck(2).await;
            }
            Self::CutBefore | Self::CutAfter => {}
        }
    }
}

/// The future's end, which must come.
pub async fn end<T>(future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.expect("an end")
}

/// Asks again and again, until there is an answer.
pub async fn until<T, F: Future<Output = Option<T>>>(mut ask: impl FnMut() -> F) -> T {
    let start = Instant::now();
    let mut pause = interval(Duration::from_millis(10));
    pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < LIMIT, "it never came about");
        pause.tick().await;
    }
}

/// Runs these together, since most of the time they wait for time limits, and gives their results in order. They start one after
/// the other, or all of them would wake at the same moments.
pub async fn side_by_side<T, F>(futures: impl IntoIterator<Item = F>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let mut starts = interval(Duration::from_millis(25));
    for (number, future) in futures.into_iter().enumerate() {
        starts.tick().await;
        tasks.spawn(async move { (number, future.await) });
    }
    let mut results = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        results.push(ended.unwrap_or_else(|failed| resume_unwind(failed.into_panic())));
    }
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}
