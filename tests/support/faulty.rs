//! A store that fails by script, around any other, and counts its calls.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::watch;
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{Claim, Note, Record, RecordState, Reservation, Steps, Store, StoreKind, Terms},
};

/// The calls that a script can be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Reserve,
    Renew,
    Complete,
    Release,
    Abandon,
    Inspect,
    Purge,
    Notes,
    Note,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It fails, and nothing is done.
    Fails(StoreErrorKind),
    /// It is done, and then fails: the answer is lost.
    LosesAnswer(StoreErrorKind),
    /// It waits for [`FaultyStore::let_go`], then goes on as if nothing were.
    Hangs,
    /// It is done, and its answer waits for [`FaultyStore::let_go`].
    AnswersLate,
    /// It takes this long.
    IsSlow(Duration),
    /// It is polled so often before and after it is done.
    IsPolled(usize),
    /// It panics, and nothing is done.
    Panics,
    /// It is done, and then panics.
    PanicsAfter,
}

/// The decorator. Clones share everything.
#[derive(Clone, Debug)]
pub struct FaultyStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Box<dyn Store>,
    kind: StoreKind,
    script: Mutex<Script>,
    counts: watch::Sender<Counts>,
    let_go: watch::Sender<bool>,
    interrupted: Mutex<Vec<bool>>,
}

#[derive(Debug, Default)]
struct Script {
    always: HashMap<Call, Fault>,
    next: HashMap<Call, VecDeque<Option<Fault>>>,
}

#[derive(Debug, Default)]
struct Counts {
    started: HashMap<Call, usize>,
    running: usize,
    dropped: usize,
}

impl FaultyStore {
    pub fn new(store: impl Store) -> Self {
        let kind = store.kind();
        Self(Arc::new(Inner {
            store: Box::new(store),
            kind,
            script: Mutex::default(),
            counts: watch::Sender::default(),
            let_go: watch::Sender::new(false),
            interrupted: Mutex::default(),
        }))
    }

    /// Pretends to be of this kind, in another process than those that run.
    pub fn of_kind(store: impl Store, kind: StoreKind) -> Self {
        let mut faulty = Self::new(store);
        let inner = Arc::get_mut(&mut faulty.0).expect("no clones yet");
        inner.kind = kind;
        faulty
    }

    /// From now on every such call has this fault.
    pub fn always(&self, call: Call, fault: Fault) -> &Self {
        self.script().always.insert(call, fault);
        self
    }

    /// The next such call that isn't spoken for has this fault.
    pub fn then(&self, call: Call, fault: Fault) -> &Self {
        let fault = Some(fault);
        self.script().next.entry(call).or_default().push_back(fault);
        self
    }

    /// The next such call that isn't spoken for works.
    pub fn then_works(&self, call: Call) -> &Self {
        self.script().next.entry(call).or_default().push_back(None);
        self
    }

    /// From now on every call works; those that hang go on hanging.
    pub fn heal(&self) {
        *self.script() = Script::default();
    }

    /// Lets calls that hang go on, now and from now on.
    pub fn let_go(&self) {
        self.0.let_go.send_replace(true);
    }

    /// How many such calls were started.
    pub fn count(&self, call: Call) -> usize {
        self.0.counts.borrow().of(call)
    }

    /// How many calls are running.
    pub fn running(&self) -> usize {
        self.0.counts.borrow().running
    }

    /// Waits until so many such calls were started.
    pub async fn reached(&self, call: Call, count: usize) {
        let mut counts = self.0.counts.subscribe();
        let reached = counts.wait_for(|counts| counts.of(call) >= count);
        drop(reached.await.expect("the store lives"));
    }

    /// Waits until no call is running, and asserts that none was ever dropped unfinished.
    pub async fn all_calls_ended(&self) {
        let mut counts = self.0.counts.subscribe();
        let ended = counts.wait_for(|counts| counts.running == 0).await;
        assert_eq!(ended.expect("the store lives").dropped, 0, "dropped calls");
    }

    /// Of each claim that was abandoned, whether its run was interrupted.
    pub fn interrupted(&self) -> Vec<bool> {
        self.0
            .interrupted
            .lock()
            .expect("no panic with the lock")
            .clone()
    }

    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        let script = self.0.script.lock();
        script.unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, call: Call) -> Option<Fault> {
        let mut script = self.script();
        let next = script.next.get_mut(&call).and_then(VecDeque::pop_front);
        next.unwrap_or_else(|| script.always.get(&call).copied())
    }

    async fn act<T>(
        &self,
        call: Call,
        act: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let fault = self.fault(call);
        let mut running = Running::new(&self.0.counts, call);
        match fault {
            Some(Fault::Hangs) => self.until_let_go().await,
            Some(Fault::IsSlow(time)) => pass(time).await,
            Some(Fault::IsPolled(times)) => yield_times(times).await,
            Some(Fault::Fails(kind)) => {
                running.ended = true;
                return Err(kind.into());
            }
            Some(Fault::Panics) => {
                running.ended = true;
                panic!("the store panics before {call:?}")
            }
            _ => {}
        }
        let result = act.await;
        match fault {
            Some(Fault::AnswersLate) => self.until_let_go().await,
            Some(Fault::IsPolled(times)) => yield_times(times).await,
            _ => {}
        }
        running.ended = true;
        match fault {
            Some(Fault::LosesAnswer(kind)) => Err(kind.into()),
            Some(Fault::PanicsAfter) => panic!("the store panics after {call:?}"),
            _ => result,
        }
    }

    async fn until_let_go(&self) {
        let mut let_go = self.0.let_go.subscribe();
        drop(let_go.wait_for(|let_go| *let_go).await);
    }
}

/// Time passes, on tokio's clock.
pub async fn pass(time: Duration) {
    let never = std::future::pending::<()>();
    let _elapsed = tokio::time::timeout(time, never).await;
}

/// Pending for so many polls.
pub async fn yield_times(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

impl Counts {
    fn of(&self, call: Call) -> usize {
        self.started.get(&call).copied().unwrap_or_default()
    }
}

/// A call that was started. Dropped before it ended, it counts as dropped.
struct Running<'a> {
    counts: &'a watch::Sender<Counts>,
    ended: bool,
}

impl<'a> Running<'a> {
    fn new(counts: &'a watch::Sender<Counts>, call: Call) -> Self {
        counts.send_modify(|counts| {
            *counts.started.entry(call).or_default() += 1;
            counts.running += 1;
        });
        Self {
            counts,
            ended: false,
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.counts.send_modify(|counts| {
            counts.running -= 1;
            counts.dropped += usize::from(!self.ended);
        });
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        let act = self.0.store.reserve(key, fingerprint, terms);
        self.act(Call::Reserve, act).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.act(Call::Renew, self.0.store.renew(claim, lease))
            .await
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let act = self.0.store.complete(claim, response, retention);
        self.act(Call::Complete, act).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.act(Call::Release, self.0.store.release(claim)).await
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        if let Ok(mut interrupted) = self.0.interrupted.lock() {
            interrupted.push(claim.interrupted());
        }
        let act = self.0.store.abandon(claim, retention);
        self.act(Call::Abandon, act).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        let record = self.act(Call::Inspect, self.0.store.inspect(key)).await?;
        // Nobody else sees of a transaction what isn't committed.
        let is_seen = |record: &Record| {
            self.0.kind == self.0.store.kind() || matches!(record.state, RecordState::Completed(_))
        };
        Ok(record.filter(is_seen))
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        self.0.store.forget(key).await
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        let act = self.0.store.purge_expired(limit);
        self.act(Call::Purge, act).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.0.store.ping().await
    }

    fn kind(&self) -> StoreKind {
        self.0.kind
    }

    fn steps(&self) -> Option<&dyn Steps> {
        self.0.store.steps().map(|_| self as &dyn Steps)
    }
}

#[async_trait]
impl Steps for FaultyStore {
    async fn notes(&self, claim: &Claim) -> Result<Vec<Note>, StoreError> {
        let steps = self.0.store.steps().expect("it had them");
        self.act(Call::Notes, steps.notes(claim)).await
    }

    async fn note(&self, claim: &Claim, note: &Note) -> Result<(), StoreError> {
        let steps = self.0.store.steps().expect("it had them");
        self.act(Call::Note, steps.note(claim, note)).await
    }
}
