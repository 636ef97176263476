use std::{error::Error, fmt};

use serde::{Serialize, de::DeserializeOwned};

use crate::{IdempotencyContext, error::BoxError, flow::Noted};

impl IdempotencyContext {
    /// Does something once for this key, over all of its runs: a recovery point.
    ///
    /// What `effect` gives is noted under `name` in the key's record. A run that takes over
    /// ([`RunAgain`](crate::store::Takeover::RunAgain)) gets the noted value back without calling it, and goes on after it. An `Err` of
    /// the effect is not noted.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// use tower_idempotency::{IdempotencyContext, StepError};
    ///
    /// # #[derive(Debug)] struct ChargeError;
    /// # impl From<StepError> for ChargeError { fn from(_: StepError) -> Self { Self } }
    /// # async fn authorize(_: uuid::Uuid) -> Result<String, ChargeError> { Ok(String::new()) }
    /// # async fn capture(_: &str, _: uuid::Uuid) -> Result<u64, ChargeError> { Ok(1) }
    /// async fn charge(context: IdempotencyContext) -> Result<u64, ChargeError> {
    ///     let authorization: String = context
    ///         .step("authorize", || authorize(context.derive_key("authorize")))
    ///         .await?;
    ///     context
    ///         .step("capture", || capture(&authorization, context.derive_key("capture")))
    ///         .await
    /// }
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    /// # use tower_idempotency::{Fingerprint, IdempotencyKey, RecordKey, Scope, Tag, store::{Claim, Nonce}};
    /// # let claim = Claim::new(RecordKey::from_bytes([0; 32]), Fingerprint::new(Tag::from_u16(1), [0; 32]), Nonce::random(), 1, 1);
    /// # let context = IdempotencyContext::new(IdempotencyKey::new("k").unwrap(), Scope::new("s").unwrap(), &claim);
    /// # assert_eq!(runtime.block_on(charge(context)).unwrap(), 1);
    /// ```
    ///
    /// # What it can't do
    ///
    /// Between the effect and its note is a window: a process that dies there, or a store that can't be reached just then, leaves an effect
    /// without a note, and a takeover has it again. Only the downstream can close it, by a [key of ours](Self::derive_key).
    ///
    /// # In detail
    ///
    /// - Needs a lease store that [keeps steps](crate::store::Store::steps), as all of this crate do. A transaction store is an error.
    /// - A note is one call of the store. On attempt 1 nothing is read; on a takeover all notes are read by the first step.
    /// - Notes are gone when the run is completed: the response takes their place. A 4xx after a step doesn't free the key, because the step
    ///   is done: the outcome is unknown, as by [`Verdict::Unknown`](crate::Verdict::Unknown), and a takeover has the notes. Only
    ///   [`Verdict::Discard`](crate::Verdict::Discard) of the handler's own gives the key back without them, and
    ///   [`Verdict::Save`](crate::Verdict::Save) makes the 4xx the answer for good.
    /// - The same name twice in a run gives the first result, also if both are under way at once. (So a step must not wait for itself.)
    ///   Steps of different names may go on at the same time.
    /// - A task that outlives the run begins no further step ([`RunEnded`](StepErrorKind::RunEnded)). A body that the layer collects is part
    ///   of the run, and one that goes on as a stream is not. A step that goes on when the run ends is noted if the run is abandoned;
    ///   where it is completed or released, the step is [`LostClaim`](StepErrorKind::LostClaim).
    /// - Where the effect happened and can't be noted, its value is returned all the same, and an event tells (feature `tracing`): the store
    ///   failed, the value is larger than [`Note::MAX_VALUE`](crate::store::Note::MAX_VALUE) as JSON, all notes together are larger than
    ///   [`Note::MAX_TOTAL`](crate::store::Note::MAX_TOTAL), or it can't be serialized. To stop there would make an unknown
    ///   outcome of a known one.
    /// - A run that isn't [protected](Self::is_protected), and a context made by [`new`](Self::new), have no record: their steps are
    ///   remembered for the run only.
    ///
    /// # Cancel safety
    ///
    /// A step that is dropped has dropped its effect, if that had not ended. A note that was being written is written to its end.
    ///
    /// # Errors
    ///
    /// What the effect gave; or a [`StepError`], after which the handler should end with an answer that leaves the outcome unknown
    /// (a 5xx): the effect was not called, unless its kind is [`LostClaim`](StepErrorKind::LostClaim).
    pub async fn step<T, E, F>(&self, name: &str, effect: impl FnOnce() -> F) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<StepError>,
        F: Future<Output = Result<T, E>>,
    {
        let notes = self.notes();
        let step = self.unless_lost(notes.begin(name).await)?;
        if let Some(noted) = step.noted() {
            return Ok(value(noted)?);
        }
        let value = effect().await?;
        let finished = notes.finish(step, serde_json::to_vec(&value)).await;
        self.unless_lost(finished)?;
        Ok(value)
    }

    /// Remembers that the claim is lost, and stops a run that has lost it.
    fn unless_lost<T>(&self, result: Result<T, StepError>) -> Result<T, StepError> {
        match result {
            Err(error) if error.kind() == StepErrorKind::LostClaim => {
                self.set_claim_lost();
                Err(error)
            }
            Ok(_) if self.claim_lost() => Err(StepErrorKind::LostClaim.into()),
            result => result,
        }
    }
}

fn value<T: DeserializeOwned>(noted: &Noted) -> Result<T, StepError> {
    match noted {
        Noted::Json(json) => serde_json::from_slice(json)
            .map_err(|error| StepError::new(StepErrorKind::OtherType, error)),
        Noted::Nothing => Err(StepErrorKind::OtherType.into()),
    }
}

/// Why a [step](IdempotencyContext::step) can't go on, opaque but for its [kind](StepErrorKind).
#[derive(Debug)]
pub struct StepError {
    kind: StepErrorKind,
    source: Option<BoxError>,
}

impl StepError {
    pub(crate) fn new(kind: StepErrorKind, source: impl Into<BoxError>) -> Self {
        Self {
            kind,
            source: Some(source.into()),
        }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> StepErrorKind {
        self.kind
    }
}

impl From<StepErrorKind> for StepError {
    /// For tests of how a handler answers it.
    fn from(kind: StepErrorKind) -> Self {
        Self { kind, source: None }
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            StepErrorKind::Transaction => {
                "a transaction store has no steps: what is written through its transaction is rolled back together, so that there is \
                 nothing to go on after; for effects elsewhere, use a lease store"
            }
            StepErrorKind::Unsupported => "the store keeps no steps",
            StepErrorKind::LostClaim => "the key is not this run's any more: it should stop",
            StepErrorKind::RunEnded => {
                "the run is over: its handler has answered, or was dropped"
            }
            StepErrorKind::OtherType => {
                "what an earlier step of this name gave can't be read as the type that is wanted"
            }
            StepErrorKind::NameTooLong => "the name of the step is too long",
            StepErrorKind::StoreUnavailable => {
                "the store doesn't tell what an earlier run has done"
            }
        })
    }
}

impl Error for StepError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The kinds of [`StepError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepErrorKind {
    /// A transaction store has none: all that is written through `Tx` is rolled back together, so that there is nothing to go on after.
    /// Effects elsewhere are for a lease store.
    Transaction,
    /// The store keeps [none](crate::store::Store::steps).
    Unsupported,
    /// Another run has the key, or the record is gone. Whatever this one answers, its caller gets what the record says. The one kind that
    /// can come after the effect.
    LostClaim,
    /// The run is over: its handler has answered, or was dropped, and what it spawned goes on. A step that begins now could neither be
    /// noted nor change how the run ends.
    RunEnded,
    /// What was noted under this name can't be read as this type: a deploy has changed it, or it is another step's name. The effect
    /// happened and must not again, so a name whose type changes needs to be read in both forms.
    OtherType,
    /// It has more than [`Note::MAX_NAME`](crate::store::Note::MAX_NAME) bytes.
    NameTooLong,
    /// What an earlier run has done couldn't be read, so nothing may be done now.
    StoreUnavailable,
}
