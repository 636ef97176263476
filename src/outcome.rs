use std::fmt;

use crate::RejectionKind;

/// What became of a keyed request. In the extensions of every response that the layer gives or lets pass, replays and
/// refusals included, but not of one without a key.
///
/// The same words are the label `outcome` of the metrics, the field `outcome` of the span, and what an
/// [observer](crate::IdempotencyLayer::with_observer) is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// `saved`: the handler ran, and its response is saved.
    Saved,
    /// `owed`: the handler ran, a lease store failed to save its response, and the layer goes on telling it in the background.
    Owed,
    /// `not_kept`: the handler ran, and its response is not kept (a tombstone): a retry gets 409 `response_not_kept`.
    NotKept,
    /// `released`: the handler ran, and nothing is kept of it: a retry runs.
    Released,
    /// `abandoned`: the handler ran and failed (an error, a response such as a 5xx), or was dropped with an inline caller. On a lease
    /// store the takeover policy decides what a retry gets, on a transaction store everything is rolled back.
    Abandoned,
    /// `unprotected`: the handler ran without protection (see [`OnStoreFailure::RunUnprotected`](crate::OnStoreFailure::RunUnprotected)).
    Unprotected,
    /// `replayed`: the saved response was given.
    Replayed,
    /// The [code](RejectionKind::code) of the refusal: the layer answered by itself. The handler may have run, as before a `run_limit`.
    Refused(RejectionKind),
    /// `cancelled`: the request ended before its handler ran, without an answer: its caller went away, or the wrapped service
    /// failed to become ready.
    Cancelled,
}

impl Outcome {
    /// The stable name in snake case; for a refusal its code.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Saved => "saved",
            Self::Owed => "owed",
            Self::NotKept => "not_kept",
            Self::Released => "released",
            Self::Abandoned => "abandoned",
            Self::Unprotected => "unprotected",
            Self::Replayed => "replayed",
            Self::Refused(kind) => kind.code(),
            Self::Cancelled => "cancelled",
        }
    }

    /// Each of them once.
    #[cfg(any(feature = "metrics", test))]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [
            Self::Saved,
            Self::Owed,
            Self::NotKept,
            Self::Released,
            Self::Abandoned,
            Self::Unprotected,
            Self::Replayed,
            Self::Cancelled,
        ]
        .into_iter()
        .chain(RejectionKind::ALL.into_iter().map(Self::Refused))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Outcome;
    use crate::RejectionKind;

    /// How many there are. A variant that is missing here doesn't compile; it belongs into the lists as well.
    fn count(outcome: Outcome) -> usize {
        match outcome {
            Outcome::Saved
            | Outcome::Owed
            | Outcome::NotKept
            | Outcome::Released
            | Outcome::Abandoned
            | Outcome::Unprotected
            | Outcome::Replayed
            | Outcome::Cancelled => 8 + count(Outcome::Refused(RejectionKind::InFlight)),
            Outcome::Refused(kind) => match kind {
                RejectionKind::MissingKey
                | RejectionKind::InvalidKey
                | RejectionKind::IncompleteBody
                | RejectionKind::MissingScope
                | RejectionKind::InFlight
                | RejectionKind::ResponseNotKept
                | RejectionKind::OutcomeUnknown
                | RejectionKind::BodyTooLarge
                | RejectionKind::KeyReused
                | RejectionKind::HandlerFailed
                | RejectionKind::RunLimit
                | RejectionKind::StoreUnavailable
                | RejectionKind::StoreFull
                | RejectionKind::NotCommitted
                | RejectionKind::OutcomePending => 15,
            },
        }
    }

    #[test]
    fn all_outcomes_are_listed_and_each_has_a_name_of_its_own() {
        let names: HashSet<_> = Outcome::all().map(Outcome::as_str).collect();
        assert_eq!(names.len(), count(Outcome::Saved));
        assert_eq!(Outcome::all().count(), names.len());
    }
}
