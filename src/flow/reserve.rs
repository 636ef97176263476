use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Guard, background,
    report::Report,
    stands::{Stands, stands},
    store_call::{panicked, within},
    subject::Subject,
    unwind::{Panicked, catch},
};
use crate::{
    Fingerprint, OnStoreFailure, RejectionKind, SavedResponse, StoreError, StoreErrorKind,
    defaults, event,
    store::{Claim, Reservation, StoreKind, Terms},
};

/// What is to be done with a request, now that the store was asked.
pub(super) enum Turn {
    Run(Claimed),
    Tell(Told),
}

/// What a caller is told without a run of the handler.
pub(super) enum Told {
    /// The saved response, and for how long it is kept yet.
    Replay(SavedResponse, Duration),
    InFlight {
        retry_after: Duration,
    },
    Refusal(RejectionKind),
}

impl Told {
    /// In flight, and nobody knows for how long.
    pub(super) const IN_FLIGHT: Self = Self::InFlight {
        retry_after: defaults::RETRY_AFTER,
    };
}

impl Turn {
    fn refuse(kind: RejectionKind) -> Self {
        Self::Tell(Told::Refusal(kind))
    }
}

/// The right to run the handler.
pub(super) struct Claimed {
    pub(super) claim: Claim,
    /// When the store was asked: the lease counts from here at the latest.
    pub(super) asked: Instant,
    /// False if the store could not be asked, and the layer runs the handler all the same.
    pub(super) protected: bool,
}

/// Reserves the key. A fingerprint of another form is no difference yet: the request's own is computed in that form first.
pub(super) async fn reserve(guard: &Arc<Guard>, subject: &Subject, report: &mut Report) -> Turn {
    let asked = Instant::now();
    // What the store can't be told of would grow without end. A layer that runs unprotected lets all requests in, and others may have
    // waited since they were.
    if guard.shared.settlements.are_full(&guard.settings) {
        // Boxed, as it seldom comes to that.
        return Box::pin(look_only(guard, subject, asked, report)).await;
    }
    let stored = match ask(guard, subject, subject.fingerprint, report).await {
        Ok(Reservation::Mismatch(stored)) if stored.tag() != subject.fingerprint.tag() => stored,
        answer => return turn(guard, subject, asked, answer),
    };
    match in_form_of(guard, subject, &stored) {
        Ok(same) => {
            // Boxed, as few requests ask twice.
            let answer = Box::pin(ask(guard, subject, same, report)).await;
            turn(guard, subject, asked, answer)
        }
        Err(refusal) => Turn::refuse(refusal),
    }
}

/// A known key is answered, and no other one claimed: a claim that is given back at once may be lost on its way.
async fn look_only(
    guard: &Arc<Guard>,
    subject: &Subject,
    asked: Instant,
    report: &mut Report,
) -> Turn {
    let stands = match may_ask(guard) {
        Ok(()) => stands(guard, subject, report).await,
        Err(error) => Err(error),
    };
    match stands {
        Ok(Stands::Running) => Turn::Tell(Told::IN_FLIGHT),
        Ok(Stands::Told(told)) => Turn::Tell(told),
        Ok(Stands::Free) => {
            guard.shared.settlements.hurry();
            Turn::refuse(RejectionKind::StoreUnavailable)
        }
        Err(error) => refused_by_store(guard, subject, asked, &error),
    }
}

fn turn(
    guard: &Arc<Guard>,
    subject: &Subject,
    asked: Instant,
    answer: Result<Reservation, StoreError>,
) -> Turn {
    match answer {
        Ok(Reservation::Acquired(claim)) => Turn::Run(Claimed {
            claim,
            asked,
            protected: true,
        }),
        Ok(Reservation::Replay {
            response,
            expires_in,
        }) => Turn::Tell(Told::Replay(response, expires_in)),
        Ok(Reservation::InFlight { retry_after }) => Turn::Tell(Told::InFlight { retry_after }),
        Ok(Reservation::Mismatch(_)) => Turn::refuse(RejectionKind::KeyReused),
        Ok(Reservation::Unknown) => Turn::refuse(RejectionKind::OutcomeUnknown),
        Err(error) => refused_by_store(guard, subject, asked, &error),
    }
}

/// The request's fingerprint in the form of the stored one, if they are equal; or why it is refused.
pub(super) fn in_form_of(
    guard: &Guard,
    subject: &Subject,
    stored: &Fingerprint,
) -> Result<Fingerprint, RejectionKind> {
    let own = if stored.tag() == subject.fingerprint.tag() {
        subject.fingerprint
    } else {
        let data = subject.collected.as_ref().map(|body| &*body.data);
        let identity = guard.fingerprint.identity(&subject.parts, data);
        let own = guard.store.fingerprint_as(&identity, stored.tag());
        own.ok_or(RejectionKind::StoreUnavailable)?
    };
    match own == *stored {
        true => Ok(own),
        false => Err(RejectionKind::KeyReused),
    }
}

async fn ask(
    guard: &Arc<Guard>,
    subject: &Subject,
    fingerprint: Fingerprint,
    report: &mut Report,
) -> Result<Reservation, StoreError> {
    may_ask(guard)?;
    let (asking, key) = (Arc::clone(guard), subject.record_key);
    let settings = &guard.settings;
    let terms = Terms::new(subject.nonce, settings.lease, settings.retention)
        .with_takeover(settings.takeover)
        .with_run_limit(settings.run_limit + settings.collect_limit + guard.call_limit);
    // A claim that comes late has work to do, too.
    let counted = guard.settings.drain.token();
    let since = report.now();
    let answer = within(
        guard,
        "reserve",
        guard.call_limit,
        StoreErrorKind::Unavailable,
        async move {
            // What panicked may have claimed the key before.
            let call = async { asking.store.reserve(&key, &fingerprint, &terms).await };
            let answer = catch(call).await;
            let answer =
                answer.unwrap_or_else(|Panicked| Err(panicked(StoreErrorKind::Unavailable)));
            if answer
                .as_ref()
                .is_err_and(|error| may_have_claimed(&asking, error))
            {
                let unheard = Claim::new(key, fingerprint, terms.nonce(), 1, 0);
                background::give_back(&asking, unheard);
            }
            answer
        },
        move |guard, late| {
            // Nobody waits for this claim any more: its handler must not run.
            if let Ok(Reservation::Acquired(claim)) = late {
                background::release(guard, Arc::new(claim));
            }
            drop(counted);
        },
    )
    .await;
    report.waited_for_store(since);
    answer
}

/// A store that hangs isn't asked.
fn may_ask(guard: &Guard) -> Result<(), StoreError> {
    if guard.shared.late_calls.are_too_many(&guard.settings) {
        let message = "too many earlier calls have not been answered";
        return Err(StoreError::new(StoreErrorKind::Unavailable, message));
    }
    Ok(())
}

/// Whether a claim may stand in the store that nobody will use: the answer to a call is lost more often than the call.
fn may_have_claimed(guard: &Guard, error: &StoreError) -> bool {
    guard.kind == StoreKind::Lease
        && error.kind() != StoreErrorKind::Full
        && !runs_unprotected(guard, error)
}

fn runs_unprotected(guard: &Guard, error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Unavailable
        && guard.settings.on_store_failure == OnStoreFailure::RunUnprotected
}

fn refused_by_store(guard: &Guard, subject: &Subject, asked: Instant, error: &StoreError) -> Turn {
    event::reserve_failed(&subject.record_key, error);
    if runs_unprotected(guard, error) {
        let claim = Claim::new(subject.record_key, subject.fingerprint, subject.nonce, 1, 0);
        return Turn::Run(Claimed {
            claim,
            asked,
            protected: false,
        });
    }
    if error.kind() == StoreErrorKind::Full {
        Turn::refuse(RejectionKind::StoreFull)
    } else {
        Turn::refuse(RejectionKind::StoreUnavailable)
    }
}
