use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use tokio::time::Instant;

use super::{Guard, retry::Answer, span::RequestSpan};
use crate::{
    Observation, Outcome, RecordKey, RejectionKind, config::ObserverFn, metric, store::Claim,
};

/// What there is to tell of a keyed request. It goes along with the request into its run, and when it is dropped, by whatever
/// end the request came to, it tells: the span, the metrics and the observer.
pub(super) struct Report {
    observation: Observation,
    observer: Option<Arc<ObserverFn>>,
    span: RequestSpan,
}

impl Report {
    /// Of a request that nothing has come of yet.
    pub(super) fn new(guard: &Guard, key: Option<RecordKey>) -> Self {
        Self {
            span: RequestSpan::new(key.as_ref()),
            observation: Observation {
                record_key: key,
                ..Observation::new(Outcome::Cancelled)
            },
            observer: guard.settings.observer.clone(),
        }
    }

    pub(super) fn span(&self) -> RequestSpan {
        self.span.clone()
    }

    /// The time, if anybody wants to know how long something takes.
    pub(super) fn now(&self) -> Option<Instant> {
        let wanted = cfg!(feature = "metrics") || self.observer.is_some() || self.span.is_enabled();
        wanted.then(Instant::now)
    }

    pub(super) fn waited_for_store(&mut self, since: Option<Instant>) {
        self.observation.store_time += since.map(|since| since.elapsed()).unwrap_or_default();
    }

    /// The handler is about to run.
    pub(super) fn runs(&mut self, claim: &Claim) {
        self.observation.attempt = Some(claim.attempt());
        self.observation.outcome = Outcome::Abandoned;
    }

    pub(super) fn ran(&mut self, since: Option<Instant>) {
        if let Some(since) = since {
            let time = self.observation.handler_time.get_or_insert_default();
            *time += since.elapsed();
        }
    }

    /// What became of the request as things stand. The caller's answer has the last word.
    pub(super) fn comes_to(&mut self, outcome: Outcome) {
        self.observation.outcome = outcome;
    }

    /// The end of the request, by what its caller is told.
    pub(super) fn answered<R, E>(mut self, answer: Answer<R, E>) -> Answer<R, E> {
        if let Ok(response) = &answer
            && let Some(outcome) = response.extensions().get()
        {
            self.observation.outcome = *outcome;
        }
        answer
    }

    fn tell(&self) {
        self.span.record(&self.observation);
        metric::request(&self.observation);
        if let Some(observer) = &self.observer {
            observer(&self.observation);
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        // Something of the user's panicked that is no run of the handler: a clone, a closure. Its caller gets a 500.
        if thread::panicking() {
            self.observation.outcome = Outcome::Refused(RejectionKind::HandlerFailed);
        }
        // Whoever listens must not change what becomes of the request, nor abort the process by a second panic.
        drop(catch_unwind(AssertUnwindSafe(|| self.tell())));
    }
}
