use std::{borrow::Cow, future::poll_fn, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};
use tower_service::Service;

use super::{
    Guard, background,
    report::Report,
    reserve::{Claimed, Told, Turn, reserve},
    store_call::inspect,
    subject::Subject,
};
use crate::{
    OnInFlight, RejectionKind, StoreError, jitter,
    store::{Nonce, RecordState, Takeover},
};

/// The first pause between two looks at the store, and the longest. A look comes after a random part of it, half at least, so that
/// many who wait don't ask all at once.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Whether a run may start.
pub(super) enum Start<S> {
    /// The key is claimed, and this service is ready to run.
    Run(S, Claimed),
    Tell(Told),
}

/// Reserves the key for a service that is ready. Another run in flight is waited for, if the layer was told to.
pub(super) async fn claim<S, Q>(
    guard: &Arc<Guard>,
    subject: &Subject,
    ready: S,
    report: &mut Report,
) -> Result<Start<S>, S::Error>
where
    S: Service<Q> + Clone,
{
    let told = match reserve(guard, subject, report).await {
        Turn::Run(claimed) => return Ok(Start::Run(ready, claimed)),
        Turn::Tell(told) => told,
    };
    match guard.settings.on_in_flight {
        OnInFlight::Wait(limit) if matches!(told, Told::InFlight { .. }) => {
            // Boxed: few requests wait, and all would have to make room for it.
            Box::pin(wait(guard, subject, ready, limit, report)).await
        }
        OnInFlight::Wait(_) | OnInFlight::Reject => Ok(Start::Tell(told)),
    }
}

/// Waits for the run that has the key, at most for `limit`. Holds nothing while it waits.
async fn wait<S, Q>(
    guard: &Arc<Guard>,
    subject: &Subject,
    ready: S,
    limit: Duration,
    report: &mut Report,
) -> Result<Start<S>, S::Error>
where
    S: Service<Q> + Clone,
{
    let unready = ready.clone();
    // Its permit would keep others from running, the one that is waited for among them.
    drop(ready);
    let deadline = Instant::now() + limit;
    let waiters = &guard.shared.waiters;
    // Subscribed before the first look: a run that ends in between is not missed.
    let Some(mut ticket) = waiters.subscribe(subject.record_key, &guard.settings) else {
        return Ok(Start::Tell(Told::IN_FLIGHT));
    };
    let mut subject = Cow::Borrowed(subject);
    let mut pause = PAUSE.0;
    loop {
        match look(guard, &subject, unready.clone(), deadline, report).await? {
            Look::Ends(start) => return Ok(start),
            Look::Running => {}
            // What gives that claim back may come late or twice, and must not meet a later one.
            Look::GaveUp => subject.to_mut().nonce = Nonce::random(),
        }
        let woken = tokio::select! {
            biased;
            () = ticket.woken() => true,
            () = sleep_until(deadline.min(Instant::now() + jitter::within(pause / 2..=pause))) => false,
        };
        if Instant::now() >= deadline {
            return Ok(Start::Tell(Told::IN_FLIGHT));
        }
        if !woken {
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}

/// What one look at the key came to.
enum Look<S> {
    Running,
    /// A claim was had with nothing ready to run, and given back.
    GaveUp,
    Ends(Start<S>),
}

/// Looks at the record before it readies the service, so that a replay doesn't need one; and readies the service before it reserves, as
/// every first request does: the other way round, a waiter with the writer lock and a request with the last permit would
/// wait for each other.
async fn look<S, Q>(
    guard: &Arc<Guard>,
    subject: &Subject,
    mut service: S,
    deadline: Instant,
    report: &mut Report,
) -> Result<Look<S>, S::Error>
where
    S: Service<Q>,
{
    let ready = match stands(guard, subject, report).await {
        Ok(Stands::Running) => return Ok(Look::Running),
        Ok(Stands::Answered) => None,
        Ok(Stands::Free) => {
            let ready = poll_fn(|cx| service.poll_ready(cx));
            match timeout_at(deadline, ready).await {
                Ok(ready) => ready?,
                Err(_elapsed) => return Ok(Look::Ends(Start::Tell(Told::IN_FLIGHT))),
            }
            Some(service)
        }
        Err(_unavailable) => {
            let refused = Told::Refusal(RejectionKind::StoreUnavailable);
            return Ok(Look::Ends(Start::Tell(refused)));
        }
    };
    Ok(match (reserve(guard, subject, report).await, ready) {
        (Turn::Run(claimed), Some(ready)) => Look::Ends(Start::Run(ready, claimed)),
        // The record expired between the two calls.
        (Turn::Run(claimed), None) => {
            give_up(guard, claimed);
            Look::GaveUp
        }
        (Turn::Tell(Told::InFlight { .. }), _) => Look::Running,
        (Turn::Tell(told), _) => Look::Ends(Start::Tell(told)),
    })
}

fn give_up(
    guard: &Arc<Guard>,
    Claimed {
        claim, protected, ..
    }: Claimed,
) {
    if protected {
        background::release(guard, Arc::new(claim));
    } else {
        background::give_back(guard, claim);
    }
}

/// How the key stands.
enum Stands {
    Running,
    /// A reservation tells, and runs nothing.
    Answered,
    /// Nothing is recorded, or a run that may be taken over.
    Free,
}

async fn stands(
    guard: &Arc<Guard>,
    subject: &Subject,
    report: &mut Report,
) -> Result<Stands, StoreError> {
    let asked = report.now();
    let record = inspect(guard, subject.record_key).await;
    report.waited_for_store(asked);
    let Some(record) = record? else {
        return Ok(Stands::Free);
    };
    let (stored, own) = (record.fingerprint, subject.fingerprint);
    // One of another form may be the same request's.
    if stored != own && stored.tag() == own.tag() {
        return Ok(Stands::Answered);
    }
    Ok(match record.state {
        RecordState::InFlight { .. } => Stands::Running,
        RecordState::Completed(_) => Stands::Answered,
        RecordState::Unknown => match guard.settings.takeover {
            Takeover::Refuse => Stands::Answered,
            Takeover::RunAgain => Stands::Free,
        },
    })
}
