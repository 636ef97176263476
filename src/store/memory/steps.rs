use async_trait::async_trait;

use super::{Access, MemoryStore};
use crate::{
    RecordKey, StoreError, StoreErrorKind,
    store::{Claim, Note, Steps},
};

/// The notes of one record.
#[derive(Default)]
pub(super) struct Notes {
    list: Vec<Note>,
    bytes: usize,
}

/// What a note costs besides its text, roughly.
const OVERHEAD: usize = 64;

impl Notes {
    /// What they count for in the budget.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn has(&self, name: &str) -> bool {
        self.list.iter().any(|note| note.name == name)
    }
}

#[async_trait]
impl Steps for MemoryStore {
    async fn notes(&self, claim: &Claim) -> Result<Vec<Note>, StoreError> {
        self.access(claim.key()).notes(claim)
    }

    async fn note(&self, claim: &Claim, note: &Note) -> Result<(), StoreError> {
        self.access(claim.key()).note(claim, note)
    }
}

impl Access<'_> {
    fn notes(&mut self, claim: &Claim) -> Result<Vec<Note>, StoreError> {
        if !self.may_note(claim) {
            return Err(StoreErrorKind::LostClaim.into());
        }
        let notes = self
            .shard()
            .get(claim.key())
            .and_then(|entry| entry.notes.as_ref());
        Ok(notes.map_or_else(Vec::new, |notes| notes.list.clone()))
    }

    fn note(&mut self, claim: &Claim, note: &Note) -> Result<(), StoreError> {
        if !self.may_note(claim) {
            return Err(StoreErrorKind::LostClaim.into());
        }
        let entry = self.shard().get(claim.key());
        if entry
            .and_then(|entry| entry.notes.as_ref())
            .is_some_and(|notes| notes.has(&note.name))
        {
            return Ok(());
        }
        let bytes = note.size() + OVERHEAD;
        if !self.budget().bytes.try_add(bytes) {
            return Err(StoreErrorKind::Full.into());
        }
        self.shard_mut().update(claim.key(), |entry| {
            let notes = entry.notes.get_or_insert_default();
            notes.list.push(note.clone());
            notes.bytes += bytes;
        });
        Ok(())
    }

    /// What a run did on the way to its response isn't needed once that is there.
    pub(super) fn drop_notes(&mut self, key: &RecordKey) {
        let mut bytes = 0;
        self.shard_mut().update(key, |entry| {
            bytes = entry.notes.take().map_or(0, |notes| notes.bytes);
        });
        self.budget().bytes.subtract(bytes);
    }
}
