use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{Resumed, pause::local_time};

/// How old a key is.
///
/// By the clock that says more: one stands still while the machine is suspended, the other may be put back.
pub(super) struct KeyAge {
    before: Duration,
    begun: Instant,
    begun_by_wall: SystemTime,
}

impl KeyAge {
    /// Of the key of a call that begins now.
    pub(super) fn new(resumed: Option<Resumed>) -> Self {
        Self {
            before: resumed.map_or(Duration::ZERO, |resumed| resumed.age()),
            begun: Instant::now(),
            begun_by_wall: local_time(),
        }
    }

    pub(super) fn get(&self) -> Duration {
        let by_wall = local_time().duration_since(self.begun_by_wall);
        let since = self.begun.elapsed().max(by_wall.unwrap_or_default());
        self.before.saturating_add(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    #[tokio::test(start_paused = true)]
    async fn a_key_grows_older_while_the_machine_is_suspended() {
        let mut age = KeyAge::new(Some(Resumed::after(HOUR)));
        // As if the wall clock alone had gone on.
        age.begun_by_wall -= 22 * HOUR;
        assert!(age.get() >= 23 * HOUR);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_put_back_makes_no_key_younger() {
        let mut age = KeyAge::new(None);
        age.begun_by_wall += 22 * HOUR;
        tokio::time::advance(HOUR).await;
        assert_eq!(age.get(), HOUR);
    }
}
