use std::{
    collections::HashMap,
    future::pending,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::watch;

use crate::{
    RecordKey,
    config::Settings,
    metric::{self, Gauged},
};

/// The requests that wait in this process, by the key that they wait for.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// So that a run that nobody waits for takes no lock.
    total: AtomicUsize,
    keys: Mutex<HashMap<RecordKey, Waited>>,
}

#[derive(Debug)]
struct Waited {
    ended: watch::Sender<()>,
    count: usize,
}

impl Waiters {
    /// None if too many wait already.
    pub(super) fn subscribe(&self, key: RecordKey, settings: &Settings) -> Option<Ticket<'_>> {
        let mut keys = self.lock();
        if self.total.load(Ordering::Relaxed) >= settings.waiters {
            return None;
        }
        let count = keys.get(&key).map_or(0, |waited| waited.count);
        if count >= settings.waiters_per_key {
            return None;
        }
        let waited = keys.entry(key).or_insert_with(|| Waited {
            ended: watch::Sender::new(()),
            count,
        });
        waited.count += 1;
        self.total.fetch_add(1, Ordering::SeqCst);
        Some(Ticket {
            waiters: self,
            key,
            ended: waited.ended.subscribe(),
            _gauged: Gauged::one(metric::WAITING),
        })
    }

    /// A run of this key ended: whoever waits for it looks again.
    pub(super) fn wake(&self, key: &RecordKey) {
        if self.total.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(waited) = self.lock().get(key) {
            waited.ended.send_replace(());
        }
    }

    /// A panic elsewhere can't leave the map half changed: nothing in here panics between two changes.
    fn lock(&self) -> MutexGuard<'_, HashMap<RecordKey, Waited>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one request that waits.
pub(super) struct Ticket<'a> {
    waiters: &'a Waiters,
    key: RecordKey,
    ended: watch::Receiver<()>,
    _gauged: Gauged,
}

impl Ticket<'_> {
    /// Until a run of the key ends. Cancel safe.
    pub(super) async fn woken(&mut self) {
        if self.ended.changed().await.is_err() {
            pending().await
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut keys = self.waiters.lock();
        self.waiters.total.fetch_sub(1, Ordering::SeqCst);
        if let Some(waited) = keys.get_mut(&self.key) {
            waited.count -= 1;
            if waited.count == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScopeBy;

    #[test]
    fn a_key_that_nobody_waits_for_any_more_is_forgotten() {
        let (waiters, settings) = (Waiters::default(), Settings::new(ScopeBy::single_tenant()));
        let key = RecordKey::from_bytes([1; 32]);
        let tickets = [0, 1].map(|_| waiters.subscribe(key, &settings));
        assert!(tickets.iter().all(Option::is_some));
        drop(tickets);
        assert!(waiters.lock().is_empty());
    }
}
