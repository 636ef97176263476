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
    OnInFlight, RejectionKind, jitter,
    store::{Nonce, RecordState},
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

/// Waits for the run that has the key, at most for `limit`.
///
/// Holds nothing while it waits. It looks at the record before it readies the service, so that a replay doesn't need one;
/// and it readies the service before it reserves, as every first request does: the other way round, a waiter with the
/// writer lock and a request with the last permit would wait for each other.
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
        let turn = match look(guard, &subject, report).await {
            Look::Running => None,
            Look::Failed => {
                return Ok(Start::Tell(Told::Refusal(RejectionKind::StoreUnavailable)));
            }
            Look::Answered => Some((reserve(guard, &subject, report).await, None)),
            Look::Free => {
                let mut service = unready.clone();
                let ready = poll_fn(|cx| service.poll_ready(cx));
                match timeout_at(deadline, ready).await {
                    Ok(ready) => ready?,
                    Err(_elapsed) => return Ok(Start::Tell(Told::IN_FLIGHT)),
                }
                Some((reserve(guard, &subject, report).await, Some(service)))
            }
        };
        match turn {
            None | Some((Turn::Tell(Told::InFlight { .. }), _)) => {}
            Some((Turn::Tell(told), _)) => return Ok(Start::Tell(told)),
            Some((Turn::Run(claimed), Some(service))) => return Ok(Start::Run(service, claimed)),
            // The record expired between the two calls, and nothing is ready to run. The next round looks again.
            Some((Turn::Run(claimed), None)) => {
                give_up(guard, claimed);
                // What gives that claim back may come late or twice, and must not meet a later one.
                subject.to_mut().nonce = Nonce::random();
            }
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

fn give_up(guard: &Arc<Guard>, claimed: Claimed) {
    if claimed.protected {
        background::release(guard, Arc::new(claimed.claim));
    }
}

enum Look {
    Running,
    /// It is done, or another request's: a reservation tells, and runs nothing.
    Answered,
    /// Nothing is recorded, or a run that may be taken over.
    Free,
    Failed,
}

async fn look(guard: &Arc<Guard>, subject: &Subject, report: &mut Report) -> Look {
    let asked = report.now();
    let record = inspect(guard, subject.record_key).await;
    report.waited_for_store(asked);
    match record {
        Ok(Some(record)) if record.fingerprint != subject.fingerprint => Look::Answered,
        Ok(Some(record)) => match record.state {
            RecordState::InFlight { .. } => Look::Running,
            RecordState::Completed(_) => Look::Answered,
            RecordState::Unknown => Look::Free,
        },
        Ok(None) => Look::Free,
        Err(_unavailable) => Look::Failed,
    }
}
