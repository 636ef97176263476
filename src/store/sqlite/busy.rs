use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::store::Nonce;

/// The claims whose owner is just renewing or settling them in this process.
///
/// Such a call may wait for the writer lock beyond the end of its lease; its owner is alive, so nobody here takes over.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy(Arc<Mutex<HashMap<Nonce, usize>>>);

impl Busy {
    pub(super) fn with(&self, nonce: Nonce) -> BusyGuard<'_> {
        *self.lock().entry(nonce).or_default() += 1;
        BusyGuard { busy: self, nonce }
    }

    pub(super) fn contains(&self, nonce: Nonce) -> bool {
        self.lock().contains_key(&nonce)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Nonce, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct BusyGuard<'a> {
    busy: &'a Busy,
    nonce: Nonce,
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        let mut busy = self.busy.lock();
        if let Some(count) = busy.get_mut(&self.nonce) {
            *count -= 1;
            if *count == 0 {
                busy.remove(&self.nonce);
            }
        }
    }
}
