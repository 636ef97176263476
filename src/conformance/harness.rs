use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::store::{ListRecords, Store};

/// What the checks need to know of a store besides its trait.
#[async_trait]
pub trait Harness: Send + Sync {
    /// The store. Every call returns one over the same records.
    fn store(&self) -> Arc<dyn Store>;

    /// Lets at least this much of the backend's time go by.
    ///
    /// For a store on a paused clock that is `tokio::time::advance`; for a real backend it is a wait.
    /// The checks ask for less than a second at a time.
    async fn pass(&self, time: Duration);
}

/// The same of a store that lists its records.
pub trait ListingHarness: Harness {
    /// The store of [`store`](Harness::store).
    fn listing(&self) -> Arc<dyn ListRecords>;

    /// Whether it says that a listing may give a record twice (default: no).
    fn may_repeat(&self) -> bool {
        false
    }
}
