//! The notes of a run's steps: read once by a run that took over, written one by one.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use tokio::sync::{Mutex as AsyncMutex, OnceCell, OwnedMutexGuard, RwLock};

use super::{
    Guard,
    limit::limited,
    store_call::{ignore, within},
};
use crate::{
    StepError, StepErrorKind, StoreError, StoreErrorKind, event,
    store::{Claim, Note, StoreKind},
};

/// What is known of the steps of one run.
pub(crate) struct Notes {
    place: Place,
    known: Mutex<Known>,
    read: OnceCell<()>,
    /// Read-locked by each note that is being written. Made with the first, as most runs have none.
    writing: OnceLock<Arc<RwLock<()>>>,
}

/// Where notes are kept.
enum Place {
    Store(Arc<Guard>, Arc<Claim>),
    /// Nowhere but here, for the run's own time.
    Run,
    None(StepErrorKind),
}

#[derive(Default)]
struct Known {
    /// By the names of the steps. Locked while a step goes on, so that another one of its name waits for its result.
    results: BTreeMap<Box<str>, Arc<AsyncMutex<Option<Noted>>>>,
    /// The size of what was noted.
    bytes: usize,
    /// The run is over.
    closed: bool,
}

/// What a step has left.
pub(crate) enum Noted {
    Json(Arc<[u8]>),
    /// It is done, and its result can't be written down.
    Nothing,
}

/// A step that goes on: no other one of its name does.
pub(crate) struct Step {
    name: Box<str>,
    result: OwnedMutexGuard<Option<Noted>>,
}

impl Step {
    /// What it has left before.
    pub(crate) fn noted(&self) -> Option<&Noted> {
        self.result.as_ref()
    }
}

impl Notes {
    pub(super) fn of_run(guard: &Arc<Guard>, claim: &Arc<Claim>, protected: bool) -> Self {
        Self::kept(if guard.kind == StoreKind::Transaction {
            Place::None(StepErrorKind::Transaction)
        } else if guard.store.steps().is_none() {
            Place::None(StepErrorKind::Unsupported)
        } else if protected {
            Place::Store(Arc::clone(guard), Arc::clone(claim))
        } else {
            Place::Run
        })
    }

    /// For a run without a store behind it.
    pub(crate) fn of_nothing() -> Self {
        Self::kept(Place::Run)
    }

    fn kept(place: Place) -> Self {
        Self {
            place,
            known: Mutex::default(),
            read: OnceCell::new(),
            writing: OnceLock::new(),
        }
    }

    /// Ends the run: no further step begins, for how the run is settled rests on those until here. Tells whether one is done, or goes
    /// on beside the handler.
    pub(super) fn close(&self) -> bool {
        let mut known = self.known();
        known.closed = true;
        let mut results = known.results.values();
        results.any(|result| result.try_lock().map_or(true, |noted| noted.is_some()))
    }

    /// Waits until no note is being written any more, but no longer than a call of the store may take. To be called before the key is
    /// left to a takeover, which would read the notes without this one, and do the step again.
    pub(super) async fn written(&self) {
        if let (Place::Store(guard, _), Some(writing)) = (&self.place, self.writing.get()) {
            drop(limited(guard.call_limit, pin!(writing.write())).await);
        }
    }

    /// Begins a step, after what earlier runs noted was read, and no other step of its name goes on.
    pub(crate) async fn begin(&self, name: &str) -> Result<Step, StepError> {
        if name.len() > Note::MAX_NAME {
            return Err(StepErrorKind::NameTooLong.into());
        }
        match &self.place {
            Place::None(why) => return Err((*why).into()),
            Place::Store(guard, claim) if claim.attempt() > 1 => {
                self.read
                    .get_or_try_init(|| self.read(guard, claim))
                    .await?;
            }
            Place::Store(..) | Place::Run => {}
        }
        let result = Arc::clone(self.known().results.entry(name.into()).or_default());
        let result = result.lock_owned().await;
        // Asked while it is locked, so that either this or `close` finds the other.
        if result.is_none() && self.known().closed {
            return Err(StepErrorKind::RunEnded.into());
        }
        Ok(Step {
            name: name.into(),
            result,
        })
    }

    /// Writes down what a step gave. What can't be written down, now or ever, is told by an event only: the step is done, and to stop here
    /// would make an unknown outcome of it.
    pub(crate) async fn finish(
        &self,
        mut step: Step,
        json: Result<Vec<u8>, serde_json::Error>,
    ) -> Result<(), StepError> {
        let noted = match &json {
            Ok(json) => Noted::Json(json.as_slice().into()),
            Err(_) => Noted::Nothing,
        };
        // Known before it is written: if this is dropped meanwhile, the step is done all the same.
        *step.result = Some(noted);
        let Place::Store(guard, claim) = &self.place else {
            return Ok(());
        };
        let written = match json {
            Ok(json) => {
                self.write(guard, claim, Note::new(step.name.clone(), json))
                    .await
            }
            Err(error) => Err(StoreError::new(StoreErrorKind::Other, error)),
        };
        match written {
            Err(error) if error.kind() == StoreErrorKind::LostClaim => {
                Err(StepError::new(StepErrorKind::LostClaim, error))
            }
            Err(error) => {
                event::not_noted(claim.key(), &error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn read(&self, guard: &Arc<Guard>, claim: &Arc<Claim>) -> Result<(), StepError> {
        let notes = match read(guard, claim).await {
            Ok(notes) => notes,
            Err(error) if error.kind() == StoreErrorKind::LostClaim => {
                return Err(StepError::new(StepErrorKind::LostClaim, error));
            }
            Err(error) => {
                event::notes_failed(claim.key(), &error);
                return Err(StepError::new(StepErrorKind::StoreUnavailable, error));
            }
        };
        let mut known = self.known();
        for note in notes {
            known.bytes += note.size();
            let noted = Some(Noted::Json(note.value.into()));
            let result = Arc::new(AsyncMutex::new(noted));
            known.results.insert(note.name.into(), result);
        }
        Ok(())
    }

    async fn write(
        &self,
        guard: &Arc<Guard>,
        claim: &Arc<Claim>,
        note: Note,
    ) -> Result<(), StoreError> {
        self.count(&note)?;
        let writing = Arc::clone(self.writing.get_or_init(Arc::default));
        let writing = writing.read_owned().await;
        let (telling, claim) = (Arc::clone(guard), Arc::clone(claim));
        let call = async move {
            let written = match telling.store.steps() {
                Some(steps) => steps.note(&claim, &note).await,
                None => Err(without_steps()),
            };
            drop(writing);
            written
        };
        ask(guard, "note", call).await
    }

    /// Counts a note, unless it is too large or there are too many.
    fn count(&self, note: &Note) -> Result<(), StoreError> {
        let mut known = self.known();
        let bytes = known.bytes + note.size();
        if note.value.len() > Note::MAX_VALUE || bytes > Note::MAX_TOTAL {
            return Err(StoreError::new(
                StoreErrorKind::Other,
                format!(
                    "its result has {} bytes, beside {} of earlier ones: at most {} and {} in all are noted",
                    note.value.len(),
                    known.bytes,
                    Note::MAX_VALUE,
                    Note::MAX_TOTAL,
                ),
            ));
        }
        known.bytes = bytes;
        Ok(())
    }

    /// Nothing panics while it is held.
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(guard: &Arc<Guard>, claim: &Arc<Claim>) -> Result<Vec<Note>, StoreError> {
    let (asking, claim) = (Arc::clone(guard), Arc::clone(claim));
    let call = async move {
        match asking.store.steps() {
            Some(steps) => steps.notes(&claim).await,
            None => Err(without_steps()),
        }
    };
    ask(guard, "notes", call).await
}

async fn ask<T: Send + 'static>(
    guard: &Arc<Guard>,
    name: &'static str,
    call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    if guard.shared.late_calls.are_too_many(&guard.settings) {
        let message = "too many earlier calls have not been answered";
        return Err(StoreError::new(StoreErrorKind::Unavailable, message));
    }
    let elapsed = StoreErrorKind::Unavailable;
    within(guard, name, guard.call_limit, elapsed, call, ignore).await
}

/// It had them when the run began.
fn without_steps() -> StoreError {
    StoreError::new(StoreErrorKind::Other, "the store keeps no steps any more")
}
