use std::{error::Error, fmt};

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// What went wrong in a [`Store`](crate::store::Store), opaque but for its [kind](StoreErrorKind).
///
/// The driver's own error is kept as the [source](Error::source).
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    source: Option<BoxError>,
}

impl StoreError {
    /// An error of this kind, caused by `source`.
    #[must_use]
    pub fn new(kind: StoreErrorKind, source: impl Into<BoxError>) -> Self {
        Self {
            kind,
            source: Some(source.into()),
        }
    }

    /// The kind, which decides what the layer does.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl From<StoreErrorKind> for StoreError {
    fn from(kind: StoreErrorKind) -> Self {
        Self { kind, source: None }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            StoreErrorKind::LostClaim => "the claim was taken over or settled otherwise",
            StoreErrorKind::RolledBack => "the transaction was rolled back",
            StoreErrorKind::Conflict => {
                "the transaction lost against another one and was rolled back"
            }
            StoreErrorKind::Misused => "the handler misused the transaction",
            StoreErrorKind::OutcomeUnknown => "whether the transaction was committed is not known",
            StoreErrorKind::Full => "the store is full",
            StoreErrorKind::Unavailable => "the store can't be reached",
            StoreErrorKind::Other => "the store failed",
        })
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The kinds of [`StoreError`], each with what the layer makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Another claim has the key, or this one was settled otherwise: the caller gets what the record says.
    LostClaim,
    /// The transaction did not commit, nothing was persisted: 503 `not_committed`.
    RolledBack,
    /// The transaction lost against another one (serialization failure, deadlock) and was rolled back: 503 `not_committed`,
    /// or the handler [runs again](crate::IdempotencyLayer::with_transaction_retries).
    Conflict,
    /// The handler kept the transaction, or ended it by itself: 500 `handler_failed`.
    Misused,
    /// `COMMIT` was sent and its outcome can't be told now: `complete` is called again, then 503 `outcome_pending`.
    OutcomeUnknown,
    /// No room for another record: 503 `store_full`.
    Full,
    /// The backend can't be reached or doesn't answer: 503 `store_unavailable`.
    Unavailable,
    /// Anything else: 503 `store_unavailable`.
    Other,
}
