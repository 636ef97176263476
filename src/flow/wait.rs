use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};
use tower_service::Service;

use super::{
    Guard, background,
    reserve::{Turn, reserve},
    store_call::{ignore, within},
    subject::Subject,
};
use crate::{RecordKey, RejectionKind, StoreErrorKind, config::Settings, store::RecordState};

/// The first pause between two looks at the store, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Waits for the run that has the key, at most for `limit`. With [`Turn::Run`] comes a service that is ready to run.
///
/// Holds nothing while it waits. It looks at the record before it readies the service, so that a replay doesn't need one;
/// and it readies the service before it reserves, as every first request does: the other way round, a waiter with the
/// writer lock and a request with the last permit would wait for each other.
pub(super) async fn turn<S, Q>(
    guard: &Arc<Guard>,
    subject: &Subject,
    unready: S,
    limit: Duration,
) -> Result<(Turn, Option<S>), S::Error>
where
    S: Service<Q> + Clone,
{
    let deadline = Instant::now() + limit;
    // Subscribed before the first look: a run that ends in between is not missed.
    let Some(mut ticket) = guard
        .shared
        .waiters
        .subscribe(subject.record_key, &guard.settings)
    else {
        return Ok((Turn::InFlight, None));
    };
    let mut pause = PAUSE.0;
    loop {
        match look(guard, subject).await {
            Look::Running => {}
            Look::Failed => return Ok((Turn::Refuse(RejectionKind::StoreUnavailable), None)),
            Look::Answered => match reserve(guard, subject).await {
                Turn::InFlight => {}
                // It expired between the two calls: nothing is ready to run it.
                Turn::Run(claimed) if claimed.protected => {
                    background::release(guard, Arc::new(claimed.claim));
                }
                turn @ (Turn::Run(_) | Turn::Replay(_) | Turn::Refuse(_)) => {
                    return Ok((turn, None));
                }
            },
            Look::Free => {
                let mut service = unready.clone();
                let ready = poll_fn(|cx| service.poll_ready(cx));
                match timeout_at(deadline, ready).await {
                    Ok(ready) => ready?,
                    Err(_elapsed) => return Ok((Turn::InFlight, None)),
                }
                match reserve(guard, subject).await {
                    Turn::InFlight => drop(service),
                    turn @ (Turn::Run(_) | Turn::Replay(_) | Turn::Refuse(_)) => {
                        return Ok((turn, Some(service)));
                    }
                }
            }
        }
        let woken = tokio::select! {
            biased;
            () = ticket.woken() => true,
            () = sleep_until(deadline.min(Instant::now() + pause)) => false,
        };
        if Instant::now() >= deadline {
            return Ok((Turn::InFlight, None));
        }
        if !woken {
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}

enum Look {
    Running,
    /// It is done, or another request's: a reservation tells, and runs nothing.
    Answered,
    /// Nothing is recorded, or a run that may be taken over.
    Free,
    Failed,
}

async fn look(guard: &Guard, subject: &Subject) -> Look {
    let (store, key) = (Arc::clone(&guard.store), subject.record_key);
    let inspection = async move { store.inspect(&key).await };
    let elapsed = StoreErrorKind::Unavailable;
    match within(guard.call_limit, elapsed, inspection, ignore).await {
        Ok(Some(record)) if record.fingerprint != subject.fingerprint => Look::Answered,
        Ok(Some(record)) => match record.state {
            RecordState::InFlight { .. } => Look::Running,
            RecordState::Completed(_) => Look::Answered,
            RecordState::Unknown => Look::Free,
        },
        Ok(None) => Look::Free,
        Err(_unavailable) => Look::Failed,
    }
}

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
    fn subscribe(&self, key: RecordKey, settings: &Settings) -> Option<Ticket<'_>> {
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

struct Ticket<'a> {
    waiters: &'a Waiters,
    key: RecordKey,
    ended: watch::Receiver<()>,
}

impl Ticket<'_> {
    async fn woken(&mut self) {
        if self.ended.changed().await.is_err() {
            std::future::pending().await
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
