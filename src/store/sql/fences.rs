use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::Found;

/// The fences of one store's claims. A rolled back claim leaves no row, and a database's clock may move in whole milliseconds:
/// so the last one is remembered here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fences(Arc<AtomicU64>);

impl Fences {
    /// The fence of a claim over what was found: above the record's and any before, and no less than the database's clock.
    pub(crate) fn next(&self, found: &Found) -> u64 {
        let clock = u64::try_from(found.now).unwrap_or(0);
        let stored = found.stored.as_ref();
        let floor = stored.map_or(clock, |stored| clock.max(stored.fence.saturating_add(1)));
        let step = |last: u64| floor.max(last.saturating_add(1));
        let update = |last| Some(step(last));
        match self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, update)
        {
            Ok(last) | Err(last) => step(last),
        }
    }
}
