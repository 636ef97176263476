use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tower_idempotency::{
    RecordKey, StoreError, StoreErrorKind,
    store::{Claim, Note, RecordState, Steps, Store},
};

use crate::flawed::{Flaw, Flawed};

/// What the flaws of steps remember.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    last: Mutex<HashMap<(RecordKey, String), Note>>,
    is_busy: AtomicBool,
}

#[async_trait]
impl Steps for Flawed {
    async fn notes(&self, claim: &Claim) -> Result<Vec<Note>, StoreError> {
        let claim = &self.checked(claim).await?;
        if self.flaw == Flaw::DropsNotesOnTakeover && claim.attempt() > 1 {
            return Ok(Vec::new());
        }
        let mut notes = self.inner_steps().notes(claim).await?;
        if self.flaw == Flaw::KeepsTheLastNote {
            let last = self.noted.last.lock().unwrap();
            for note in &mut notes {
                let last = last.get(&(*claim.key(), note.name.clone()));
                note.clone_from(last.expect("a note that was added"));
            }
        }
        Ok(notes)
    }

    async fn note(&self, claim: &Claim, note: &Note) -> Result<(), StoreError> {
        let claim = &self.checked(claim).await?;
        if self.flaw == Flaw::LosesNotesAtOnce {
            // Reads, and writes what it read with the new one added.
            if self.noted.is_busy.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
            tokio::task::yield_now().await;
            self.noted.is_busy.store(false, Ordering::SeqCst);
        }
        if self.flaw == Flaw::RenewsByNoting {
            self.inner.renew(claim, Duration::from_secs(600)).await?;
        }
        let mut note = note.clone();
        if self.flaw == Flaw::CutsNotes {
            note.value.truncate(u16::MAX.into());
        }
        let name = (*claim.key(), note.name.clone());
        self.noted.last.lock().unwrap().insert(name, note.clone());
        match self.inner_steps().note(claim, &note).await {
            Err(error)
                if self.flaw == Flaw::NotesWhatIsOver
                    && error.kind() == StoreErrorKind::LostClaim =>
            {
                match self.state(claim.key()).await {
                    None | Some(RecordState::Completed(_)) => Ok(()),
                    Some(_) => Err(error),
                }
            }
            noted => noted,
        }
    }
}

impl Flawed {
    fn inner_steps(&self) -> &dyn Steps {
        self.inner.steps().expect("the memory store keeps them")
    }
}
