//! The renewals that are not due yet.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    runtime::{self, Handle, RuntimeFlavor},
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use super::{Guard, renewal::keep_renewed, span::RequestSpan};
use crate::{IdempotencyContext, store::Claim};

/// The renewals of a layer's runs, until they are due, in each runtime by a task that starts them. (A runtime that isn't driven any
/// more must not keep the runs of another one from being renewed.)
#[derive(Default)]
pub(super) struct Renewals(Mutex<Vec<(runtime::Id, Arc<Keeper>)>>);

/// A run's claim.
pub(super) struct Held {
    pub(super) guard: Arc<Guard>,
    pub(super) claim: Arc<Claim>,
    pub(super) context: IdempotencyContext,
    pub(super) from: Instant,
    pub(super) span: RequestSpan,
}

impl Renewals {
    /// Has the claim renewed in this runtime, at first when it is `due`, until the place is dropped.
    pub(super) fn hold(&self, due: Instant, held: Held) -> Place {
        let runtime = Handle::current();
        let id = runtime.id();
        let settings = &held.guard.settings;
        let has_own_task = settings.detached && settings.spawn.is_none();
        let keeper = {
            let mut keepers = lock(&self.0);
            if let Some((_, keeper)) = keepers.iter().find(|keeper| keeper.0 == id) {
                Arc::clone(keeper)
            } else {
                // Nothing is held by those that only this list knows. Their runtimes may be gone.
                keepers.retain(|(_, keeper)| Arc::strong_count(keeper) > 1);
                let keeper = Arc::new(Keeper::default());
                keepers.push((id, Arc::clone(&keeper)));
                keeper
            }
        };
        let place = keeper.hold(due, held);
        if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
            wake_another_worker(has_own_task);
        }
        place
    }
}

/// The renewals of one runtime.
#[derive(Default)]
struct Keeper {
    held: Mutex<AllHeld>,
    earlier: Notify,
}

#[derive(Default)]
struct AllHeld {
    /// By when they are due, and the order in which they came.
    waiting: BTreeMap<(Instant, u64), Held>,
    started: HashMap<u64, AbortHandle>,
    last: u64,
    task: Option<Task>,
}

/// What starts the renewals that are due. Its runtime may have ended it.
struct Task {
    handle: AbortHandle,
    /// When it looks again.
    wakes: Instant,
}

impl Keeper {
    fn hold(self: Arc<Self>, due: Instant, held: Held) -> Place {
        let mut all = lock(&self.held);
        all.last += 1;
        let place = (due, all.last);
        all.waiting.insert(place, held);
        match &mut all.task {
            Some(task) if !task.handle.is_finished() => {
                if due < task.wakes {
                    task.wakes = due;
                    self.earlier.notify_one();
                }
            }
            Some(_) | None => {
                let handle = tokio::spawn(Arc::clone(&self).start_when_due()).abort_handle();
                all.task = Some(Task { handle, wakes: due });
            }
        }
        drop(all);
        Place {
            keeper: self,
            place,
        }
    }

    /// Ends when nothing is held any more.
    async fn start_when_due(self: Arc<Self>) {
        while let Some(next) = self.start_due() {
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.earlier.notified() => {}
            }
        }
    }

    /// Starts what is due, and tells when the next one is.
    fn start_due(&self) -> Option<Instant> {
        let mut all = lock(&self.held);
        let now = Instant::now();
        while let Some(first) = all
            .waiting
            .first_entry()
            .filter(|first| first.key().0 <= now)
        {
            let ((_, number), held) = first.remove_entry();
            all.started.insert(number, held.start());
        }
        let next = all.waiting.keys().next().map(|(due, _)| *due);
        let task = all.task.take();
        all.task = task.zip(next).map(|(task, wakes)| Task { wakes, ..task });
        next
    }
}

/// A handler may block this worker, and if that was the one that watched clock and sockets, no other one does before it is woken
/// (measured: with Tokio 1.54 no renewal began until the handler let go).
///
/// To spawn a task wakes one, but not for the last: a worker keeps that for itself, where no other one can take it. Where the run
/// comes next as a task, that is the last.
fn wake_another_worker(before_a_task: bool) {
    for _ in 0..if before_a_task { 1 } else { 2 } {
        tokio::spawn(async {});
    }
}

impl Held {
    fn start(self) -> AbortHandle {
        let Self {
            guard,
            claim,
            context,
            from,
            span,
        } = self;
        let renewal = async move {
            let lost = || context.set_claim_lost();
            match keep_renewed(&guard, &claim, from, lost).await {}
        };
        tokio::spawn(span.around(renewal)).abort_handle()
    }
}

/// Until it is dropped, a claim is held.
pub(super) struct Place {
    keeper: Arc<Keeper>,
    place: (Instant, u64),
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = lock(&self.keeper.held);
        let waited = all.waiting.remove(&self.place);
        if waited.is_none()
            && let Some(task) = all.started.remove(&self.place.1)
        {
            task.abort();
        }
        // The lock isn't held when the claim is let go of.
        drop(all);
        drop(waited);
    }
}

/// Nothing panics while it is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use std::time::Duration;

    use tokio::{
        runtime::{Builder, Runtime},
        time::advance,
    };

    use super::*;
    use crate::{
        Fingerprint, IdempotencyKey, MemoryStore, RecordKey, Scope, ScopeBy, Tag, config::Settings,
        store::Nonce,
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn paused() -> Runtime {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build();
        runtime.expect("a runtime")
    }

    fn hold(keeper: &Arc<Keeper>) -> Place {
        let settings = Settings::new(ScopeBy::single_tenant());
        let fingerprint = Fingerprint::new(Tag::from_u16(1), [2; 32]);
        let key = RecordKey::from_bytes([1; 32]);
        let claim = Claim::new(key, fingerprint, Nonce::random(), 1, 0);
        let scope = Scope::new("shop").expect("a scope");
        let key = IdempotencyKey::new("k").expect("a key");
        let context = IdempotencyContext::new(key, scope, &claim);
        let from = Instant::now();
        let held = Held {
            guard: Arc::new(Guard::new(
                Arc::new(MemoryStore::new()),
                Arc::default(),
                settings,
            )),
            claim: Arc::new(claim),
            context,
            from,
            span: RequestSpan::current(),
        };
        Arc::clone(keeper).hold(from + SECOND, held)
    }

    /// As Tokio may give the id of a runtime that has ended to another one.
    #[test]
    fn what_is_held_is_renewed_after_the_runtime_ended_that_had_the_task() {
        let keeper = Arc::<Keeper>::default();
        let ended = paused();
        let handle = ended.handle().clone();
        let before = ended.block_on(async { hold(&keeper) });
        drop(ended);
        let meanwhile = {
            let _entered = handle.enter();
            hold(&keeper)
        };
        let started = || lock(&keeper.held).started.len();
        assert_eq!(started(), 0);

        paused().block_on(async {
            let after = hold(&keeper);
            for _ in 0..10 {
                advance(SECOND).await;
            }
            assert_eq!(started(), 3);
            drop((before, meanwhile, after));
            assert_eq!(started(), 0);
        });
    }
}
