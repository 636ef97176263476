//! What goes on after the caller has its answer: telling a store that failed, until it has heard.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep},
};

use super::{
    Guard, Shared,
    renewal::keep_renewed,
    settle::{Settlement, settle, tell},
    store_call::inspect,
};
use crate::{
    IdempotencyContext, SavedResponse, StoreError, StoreErrorKind,
    config::Settings,
    event,
    metric::{self, Gauged},
    store::{Claim, StoreKind, Takeover},
};

/// The pause after the first failure; it doubles up to a third of the lease.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Completes the claim of a lease store that failed to, and keeps it renewed meanwhile: until the store says that it has
/// the response or that the claim was lost, or the retention is over.
pub(super) fn complete(
    guard: &Arc<Guard>,
    claim: Arc<Claim>,
    saved: SavedResponse,
    asked: Instant,
) {
    let owed = Owed::new(&guard.shared, saved.size());
    let settlement = Settlement::Complete(saved);
    spawn(guard, move |guard| async move {
        tokio::select! {
            () = repeat(&guard, &claim, settlement) => {}
            never = keep_renewed(&guard, &claim, asked, || {}) => match never {},
        }
        drop(owed);
        guard.shared.waiters.wake(claim.key());
    });
}

/// Releases a claim whose handler has not started, or said that nothing happened.
pub(super) fn release(guard: &Arc<Guard>, claim: Arc<Claim>) {
    let owed = Owed::new(&guard.shared, 0);
    spawn(guard, move |guard| async move {
        repeat(&guard, &claim, Settlement::Release).await;
        drop(owed);
        guard.shared.waiters.wake(claim.key());
    });
}

/// Abandons a claim whose handler was dropped, after the notes of its steps that are being written. It is tried once: if the store doesn't
/// hear it, the lease ends by itself.
pub(super) fn abandon(guard: &Arc<Guard>, claim: Arc<Claim>, context: IdempotencyContext) {
    spawn(guard, move |guard| async move {
        context.notes().written().await;
        if let Err(error) = settle(&guard, &claim, Settlement::Abandon).await {
            event::settlement_failed(claim.key(), &error);
        }
        guard.shared.waiters.wake(claim.key());
    });
}

/// Gives back what a reservation may have claimed whose answer was lost: its handler never runs, and a lapsed lease would
/// read as a run of unknown outcome. Once is all, or every request to a store that is down would leave work behind.
pub(super) fn give_back(guard: &Arc<Guard>, unheard: Claim) {
    spawn(guard, move |guard| async move {
        let released = match as_recorded(&guard, &unheard).await {
            Ok(claim) => {
                let claim = Arc::new(claim);
                settle(&guard, &claim, Settlement::Release).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            event::settlement_failed(unheard.key(), &error);
        }
        guard.shared.waiters.wake(unheard.key());
    });
}

/// The claim with its attempt number: one that took over must not be given back as the first.
async fn as_recorded(guard: &Arc<Guard>, unheard: &Claim) -> Result<Claim, StoreError> {
    let record = match guard.settings.takeover {
        Takeover::Refuse => None,
        Takeover::RunAgain => inspect(guard, *unheard.key()).await?,
    };
    let (attempt, fence) = record.map_or((1, 0), |record| (record.attempt, record.fence));
    let (key, fingerprint) = (*unheard.key(), *unheard.fingerprint());
    Ok(Claim::new(
        key,
        fingerprint,
        unheard.nonce(),
        attempt,
        fence,
    ))
}

/// Tells the store until it has heard. Each call runs to its end before the next: a store that hangs gets one, not many.
async fn repeat(guard: &Arc<Guard>, claim: &Arc<Claim>, settlement: Settlement) {
    let deadline = Instant::now() + guard.settings.retention;
    let mut pause = FIRST_PAUSE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match tell(guard, claim, settlement.clone(), left).await {
            Ok(()) => {
                // It is back, and others may be told as well.
                guard.shared.settlements.hurry();
                return;
            }
            Err(error) => {
                event::settlement_failed(claim.key(), &error);
                if is_final(guard.kind, error.kind()) || Instant::now() >= deadline {
                    return;
                }
            }
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(guard.settings.lease / 3),
            () = guard.shared.settlements.hurried.notified() => {}
        }
    }
}

/// Whether such a store would say the same again: a transaction that has ended, or that its handler has, is not to be settled.
fn is_final(store: StoreKind, error: StoreErrorKind) -> bool {
    match error {
        StoreErrorKind::LostClaim => true,
        StoreErrorKind::RolledBack | StoreErrorKind::Conflict | StoreErrorKind::Misused => {
            store == StoreKind::Transaction
        }
        StoreErrorKind::OutcomeUnknown
        | StoreErrorKind::Full
        | StoreErrorKind::Unavailable
        | StoreErrorKind::Other => false,
    }
}

/// Spawns work that [`Drain`](crate::Drain) counts. Without a runtime (at its end) nothing can be done: leases end by themselves.
fn spawn<F: Future<Output = ()> + Send + 'static>(
    guard: &Arc<Guard>,
    work: impl FnOnce(Arc<Guard>) -> F,
) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    let counted = guard.settings.drain.token();
    let work = work(Arc::clone(guard));
    runtime.spawn(async move {
        work.await;
        drop(counted);
    });
}

/// How many settlements, with how many bytes of responses, the store has not heard of yet.
#[derive(Debug, Default)]
pub(super) struct Settlements {
    count: AtomicUsize,
    bytes: AtomicUsize,
    hurried: Notify,
}

impl Settlements {
    /// Has one of them told now. Without this, a store that is back would have to wait for the end of their pauses, while new
    /// requests are refused.
    pub(super) fn hurry(&self) {
        self.hurried.notify_one();
    }

    pub(super) fn are_full(&self, settings: &Settings) -> bool {
        self.count.load(Ordering::Relaxed) >= settings.settlements
            || self.bytes.load(Ordering::Relaxed) >= settings.settlement_bytes
    }
}

/// One of them. It counts until it is dropped, be it with a runtime that ends.
pub(super) struct Owed {
    shared: Arc<Shared>,
    bytes: usize,
    _gauged: [Gauged; 2],
}

impl Owed {
    pub(super) fn new(shared: &Arc<Shared>, bytes: usize) -> Self {
        let settlements = &shared.settlements;
        settlements.count.fetch_add(1, Ordering::Relaxed);
        settlements.bytes.fetch_add(bytes, Ordering::Relaxed);
        Self {
            shared: Arc::clone(shared),
            bytes,
            _gauged: [
                Gauged::one(metric::OWED_SETTLEMENTS),
                Gauged::many(metric::OWED_BYTES, bytes),
            ],
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let settlements = &self.shared.settlements;
        settlements.count.fetch_sub(1, Ordering::Relaxed);
        settlements.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
