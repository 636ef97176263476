//! What goes wrong, and with which statements.

use std::time::Duration;

use tokio::{sync::watch, time::timeout};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);

/// What happens to a statement. Its connection has nothing else under way at that moment.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It reaches the server this much later.
    Delay(Duration),
    /// The server never sees it; the connection is cut.
    CutBefore,
    /// The server executes it and answers; the answer is lost, and the connection cut.
    CutAfter,
    /// The client's side is cut. The server doesn't learn of that, and executes it once it is let go
    /// ([`Proxy::resume`](super::Proxy::resume)); that is the second strike, and then its side is cut.
    CutClient,
    /// The server executes it and answers; the answer waits in the proxy ([`Proxy::resume`](super::Proxy::resume)).
    SwallowReply,
    /// It waits in the proxy ([`Proxy::resume`](super::Proxy::resume)).
    Hang,
}

impl Fault {
    /// For the next execution of a statement that contains this text, and for no other.
    pub fn on(self, text: &str) -> Rule {
        Rule {
            text: text.to_owned(),
            fault: self,
            passes: 0,
            times: 1,
            strikes: watch::Sender::new(0),
        }
    }
}

/// A fault, and the executions that it strikes.
#[derive(Debug)]
pub struct Rule {
    text: String,
    fault: Fault,
    passes: usize,
    times: usize,
    strikes: watch::Sender<usize>,
}

impl Rule {
    /// Lets this many executions pass first.
    #[must_use]
    pub fn after(mut self, executions: usize) -> Self {
        self.passes = executions;
        self
    }

    /// Strikes this many.
    #[must_use]
    pub fn times(mut self, executions: usize) -> Self {
        self.times = executions;
        self
    }

    /// Strikes every one.
    #[must_use]
    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }

    pub(super) fn strikes(&self) -> Strikes {
        Strikes(self.strikes.subscribe())
    }

    /// The fault for this statement, if the rule holds for it now.
    pub(super) fn meet(&mut self, statement: &str) -> Option<(Fault, watch::Sender<usize>)> {
        if !statement.contains(&self.text) {
            return None;
        }
        if self.passes > 0 {
            self.passes -= 1;
            return None;
        }
        self.times = self.times.checked_sub(1)?;
        Some((self.fault, self.strikes.clone()))
    }
}

/// How often a fault struck.
#[derive(Clone, Debug)]
pub struct Strikes(watch::Receiver<usize>);

impl Strikes {
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until it struck this often: the statement's fate at the server is decided, or it waits in the proxy.
    ///
    /// # Panics
    ///
    /// Panics if that doesn't come about.
    pub async fn struck(&self, times: usize) {
        let mut strikes = self.0.clone();
        let struck = timeout(LIMIT, strikes.wait_for(|count| *count >= times)).await;
        assert!(
            matches!(struck, Ok(Ok(_))),
            "it struck {} times",
            self.count()
        );
    }
}
