use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tower::retry::budget::{Budget as _, TpsBudget};

use super::defaults;

/// How many retries all calls together may make. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    per_second: u32,
    share: f32,
    /// Made with the first call, when the terms are known to be right.
    bucket: Arc<OnceLock<TpsBudget>>,
}

impl Budget {
    pub(super) fn new(per_second: u32, share: f32) -> Self {
        Self {
            per_second,
            share,
            bucket: Arc::default(),
        }
    }

    pub(super) fn validate(&self) {
        assert!(
            (0.0..=1000.0).contains(&self.share),
            "with_retry_budget: the share ({}) must be between 0 and 1000",
            self.share
        );
        assert!(
            self.per_second < i32::MAX as u32,
            "with_retry_budget: at most {} retries per second",
            i32::MAX - 1
        );
    }

    /// Notes a call.
    pub(super) fn deposit(&self) {
        self.bucket().deposit();
    }

    /// Whether one retry more is allowed; it then counts.
    pub(super) fn withdraw(&self) -> bool {
        self.bucket().withdraw()
    }

    fn bucket(&self) -> &TpsBudget {
        self.bucket
            .get_or_init(|| TpsBudget::new(WINDOW, self.per_second, self.share))
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(defaults::RETRIES_PER_SECOND, defaults::RETRY_SHARE)
    }
}

/// How long a call counts; that of tower's default.
const WINDOW: Duration = Duration::from_secs(10);
