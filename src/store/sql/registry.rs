use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::{
    Fingerprint, RecordKey,
    store::{Record, RecordState},
};

/// The keys that this store has a transaction for: a duplicate in the same process is answered without a connection.
///
/// Between processes, the database decides.
#[derive(Clone, Default)]
pub(crate) struct Registry(Arc<Mutex<HashMap<RecordKey, State>>>);

enum State {
    /// Dropping the sender wakes those who wait.
    Reserving(watch::Sender<()>),
    Running(Running),
    /// Likewise.
    Leaving(watch::Sender<()>),
}

/// Why a key can't be entered.
pub(crate) enum Busy {
    /// Another reservation is under way.
    Reserving(Wait),
    /// A run has it.
    Running(Running),
    /// A reservation has its answer, and the database has yet to free the key.
    Leaving(Wait),
}

/// The run that has a key.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) fence: u64,
    pub(crate) since: Instant,
    /// After this time its transaction has ended, unless the handler keeps it.
    pub(crate) limit: Duration,
}

pub(crate) struct Wait(watch::Receiver<()>);

/// A key's place in the registry, free again when this is dropped.
pub(crate) struct Entry {
    registry: Registry,
    key: RecordKey,
}

impl Registry {
    /// Who has the key.
    pub(crate) fn look(&self, key: &RecordKey) -> Option<Busy> {
        self.lock().get(key).map(Busy::of)
    }

    /// Takes the key for a reservation.
    pub(crate) fn enter(&self, key: &RecordKey) -> Result<Entry, Busy> {
        let mut states = self.lock();
        if let Some(state) = states.get(key) {
            return Err(Busy::of(state));
        }
        states.insert(*key, State::Reserving(watch::Sender::new(())));
        Ok(Entry {
            registry: self.clone(),
            key: *key,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RecordKey, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Busy {
    fn of(state: &State) -> Self {
        match state {
            State::Reserving(ended) => Self::Reserving(Wait(ended.subscribe())),
            State::Running(running) => Self::Running(*running),
            State::Leaving(ended) => Self::Leaving(Wait(ended.subscribe())),
        }
    }
}

impl Running {
    /// As an operator sees it, who finds no record of it in the database yet.
    pub(crate) fn record(&self) -> Record {
        let left = self.limit.saturating_sub(self.since.elapsed());
        let state = RecordState::InFlight { lease_left: left };
        Record::new(self.fingerprint, 1, self.fence, state, left)
    }
}

impl Wait {
    /// Until it has ended, one way or the other.
    pub(crate) async fn ended(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

impl Entry {
    /// The reservation got its claim.
    pub(crate) fn set_running(&self, running: Running) {
        self.set(State::Running(running));
    }

    /// The reservation got an answer.
    pub(crate) fn set_leaving(&self) {
        self.set(State::Leaving(watch::Sender::new(())));
    }

    fn set(&self, state: State) {
        self.registry.lock().insert(self.key, state);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.registry.lock().remove(&self.key);
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} keys)", self.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tag;

    fn running() -> Running {
        Running {
            fingerprint: Fingerprint::new(Tag::from_u16(1), [2; 32]),
            fence: 3,
            since: Instant::now(),
            limit: Duration::ZERO,
        }
    }

    #[test]
    fn a_key_is_free_again_when_its_entry_is_dropped() {
        let (registry, key) = (Registry::default(), RecordKey::from_bytes([1; 32]));
        let entry = registry.enter(&key).ok().unwrap();
        assert!(matches!(registry.look(&key), Some(Busy::Reserving(_))));
        entry.set_running(running());
        assert!(matches!(registry.enter(&key), Err(Busy::Running(_))));
        drop(entry);
        assert!(registry.look(&key).is_none());
        assert_eq!(format!("{registry:?}"), "Registry(0 keys)");
    }

    #[tokio::test]
    async fn waiting_ends_with_the_reservation_however_it_ends() {
        let (registry, key) = (Registry::default(), RecordKey::from_bytes([1; 32]));
        let wins = |entry: &Entry| entry.set_running(running());
        for end in [Some(wins as fn(&Entry)), Some(Entry::set_leaving), None] {
            let entry = registry.enter(&key).ok().unwrap();
            let Some(Busy::Reserving(wait)) = registry.look(&key) else {
                panic!("not reserving");
            };
            match end {
                Some(end) => end(&entry),
                None => drop(entry),
            }
            wait.ended().await;
        }
    }
}
