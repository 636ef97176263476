use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// What all shards together hold, and may hold.
pub(super) struct Budget {
    pub(super) entries: Gauge,
    pub(super) bytes: Gauge,
}

impl Budget {
    pub(super) fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self {
            entries: Gauge::new(max_entries),
            bytes: Gauge::new(max_bytes),
        }
    }
}

/// An exact count with a bound. It orders nothing: what is counted lies behind the locks of the shards.
pub(super) struct Gauge {
    used: AtomicUsize,
    max: AtomicUsize,
}

impl Gauge {
    fn new(max: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            max: AtomicUsize::new(max),
        }
    }

    pub(super) fn set_max(&self, max: usize) {
        self.max.store(max, Relaxed);
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Adds, unless the sum would be over the bound.
    pub(super) fn try_add(&self, amount: usize) -> bool {
        let max = self.max.load(Relaxed);
        self.used
            .fetch_update(Relaxed, Relaxed, |used| {
                used.checked_add(amount).filter(|sum| *sum <= max)
            })
            .is_ok()
    }

    /// Adds, whatever the bound says.
    pub(super) fn add(&self, amount: usize) {
        self.used.fetch_add(amount, Relaxed);
    }

    pub(super) fn subtract(&self, amount: usize) {
        self.used.fetch_sub(amount, Relaxed);
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.used(), self.max.load(Relaxed))
    }
}
