use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tower_idempotency::{Fingerprint, RecordKey, store::Reservation};

/// What runs in this process, so that another request under a key that is locked is told that it is another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running(Arc<Mutex<HashMap<RecordKey, Weak<Fingerprint>>>>);

impl Running {
    /// Keeps the key's fingerprint for as long as somebody holds what this returns.
    pub(crate) fn enter(&self, key: &RecordKey, fingerprint: &Fingerprint) -> Arc<Fingerprint> {
        let entry = Arc::new(*fingerprint);
        let mut entries = self.entries();
        // There are no more entries than connections, and those that have ended.
        entries.retain(|_, entry| entry.strong_count() > 0);
        entries.insert(*key, Arc::downgrade(&entry));
        entry
    }

    /// What a request is told whose key is locked.
    pub(crate) fn answer(&self, key: &RecordKey, fingerprint: &Fingerprint) -> Reservation {
        let running = self.entries().get(key).and_then(Weak::upgrade);
        match running {
            Some(running) if *running != *fingerprint => Reservation::Mismatch(*running),
            _ => Reservation::in_flight(Duration::from_secs(1)),
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<RecordKey, Weak<Fingerprint>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
