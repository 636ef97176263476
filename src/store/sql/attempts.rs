use std::time::Duration;

use tokio::time::sleep;

use crate::jitter;

/// How often, and after which pauses.
pub(crate) struct Attempts {
    left: usize,
    longest: Duration,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            left: ATTEMPTS,
            longest: FIRST_PAUSE,
        }
    }
}

impl Attempts {
    /// Pauses after an attempt that lost. False after the last one, at once.
    pub(crate) async fn again(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            return false;
        }
        sleep(jitter::within(Duration::ZERO..=self.longest)).await;
        self.longest = (self.longest * 2).min(LONGEST_PAUSE);
        true
    }
}

/// About a second and a half in all, on average half of that.
pub(super) const ATTEMPTS: usize = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
