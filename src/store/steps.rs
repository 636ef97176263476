use async_trait::async_trait;

use super::Claim;
use crate::StoreError;

/// What a store keeps of the steps of a run, so that a run that takes over doesn't repeat them.
///
/// Reached by [`Store::steps`](super::Store::steps), and called by [`IdempotencyContext::step`](crate::IdempotencyContext::step).
/// A *note* is a step's name and its result, in bytes that mean nothing to the store. The notes are a part of the key's record: they are
/// there for the next claim that takes the key over, and gone with whatever else ends the record's run.
///
/// # Contract
///
/// As for [`Store`](super::Store), with the checks in `conformance::steps` (kind `steps` of `conformance_tests!`). Both calls are
/// compared on the nonce: where an unexpired record that isn't completed has not that of the claim, or where there is none, they are
/// [`LostClaim`](crate::StoreErrorKind::LostClaim) and change nothing.
///
/// - S1. `notes_outlive_their_run`: after a lapsed or abandoned claim was taken over, as often as that happens, its notes are those
///   of the new claim; names and values are byte for byte as they were.
/// - S2. `the_first_note_of_a_name_stays`: the same call repeated is `Ok` and changes nothing, and so is another value.
/// - S3. `notes_at_once_are_all_kept`: calls with one claim don't lose each other's notes.
/// - S4. `a_late_owner_notes_nothing`: after a takeover, both calls with the old claim are `LostClaim`.
/// - S5. `an_unsettled_claim_may_note`: until somebody takes over, also where it has lapsed or was abandoned. What a handler did that
///   was dropped may be noted after that.
/// - S6. `notes_end_with_their_run`: after `complete`, `release`, `forget` or the record's expiry a note is `LostClaim`, and the
///   next claim of the key has none.
/// - S7. `noting_moves_no_time`: neither the end of the lease nor the expiry.
/// - S8. `large_notes_are_kept`: up to [`Note::MAX_NAME`], [`Note::MAX_VALUE`] and [`Note::MAX_TOTAL`]. Callers keep to those.
///
/// # Cancel safety
///
/// As for [`Store`](super::Store): the layer never drops a call before its end.
///
/// # Errors
///
/// [`Unavailable`](crate::StoreErrorKind::Unavailable) and [`Other`](crate::StoreErrorKind::Other), as every call of a store, after which
/// it may be repeated; and what is told below.
#[async_trait]
pub trait Steps: Send + Sync {
    /// The notes of the claim's record, in any order, each name once.
    ///
    /// # Errors
    ///
    /// [`LostClaim`](crate::StoreErrorKind::LostClaim) if the record isn't the claim's, or is completed.
    async fn notes(&self, claim: &Claim) -> Result<Vec<Note>, StoreError>;

    /// Adds a note to the claim's record, unless it has one of this name.
    ///
    /// # Errors
    ///
    /// [`LostClaim`](crate::StoreErrorKind::LostClaim) if the record isn't the claim's, or is completed;
    /// [`Full`](crate::StoreErrorKind::Full) if there is no room.
    async fn note(&self, claim: &Claim, note: &Note) -> Result<(), StoreError>;
}

/// The name of a step, and what it gave.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// At most [`MAX_NAME`](Self::MAX_NAME) bytes.
    pub name: String,
    /// At most [`MAX_VALUE`](Self::MAX_VALUE) bytes.
    pub value: Vec<u8>,
}

impl Note {
    /// The longest name, in bytes.
    pub const MAX_NAME: usize = 255;
    /// The largest value, in bytes: 64 KiB, for what another service answered. A note is a statement of its own to a database.
    pub const MAX_VALUE: usize = 64 * 1024;
    /// The most that the names and values of one record's notes take together, in bytes: 256 KiB. Most backends write all of them
    /// anew with each one.
    pub const MAX_TOTAL: usize = 256 * 1024;

    /// A note as a store read it.
    #[must_use]
    pub fn new(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }

    /// What counts for [`MAX_TOTAL`](Self::MAX_TOTAL).
    pub(crate) fn size(&self) -> usize {
        self.name.len() + self.value.len()
    }
}
