use std::{future::poll_fn, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};
use tower_service::Service;

use super::{
    Guard,
    report::Report,
    reserve::{Claimed, Told, Turn, reserve},
    stands::{Stands, stands},
    subject::Subject,
};
use crate::{OnInFlight, RejectionKind, jitter};

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
    let mut pause = PAUSE.0;
    loop {
        if let Some(start) = look(guard, subject, unready.clone(), deadline, report).await? {
            return Ok(start);
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

/// Looks at the key once. None while another run has it.
///
/// What the record tells needs no service that is ready. Where a run may start, the service is readied before the key is reserved, as for
/// every first request: the other way round, a waiter with the writer lock and a request with the last permit would wait for
/// each other.
async fn look<S, Q>(
    guard: &Arc<Guard>,
    subject: &Subject,
    mut service: S,
    deadline: Instant,
    report: &mut Report,
) -> Result<Option<Start<S>>, S::Error>
where
    S: Service<Q>,
{
    match stands(guard, subject, report).await {
        Ok(Stands::Running) => return Ok(None),
        Ok(Stands::Told(told)) => return Ok(Some(Start::Tell(told))),
        Ok(Stands::Free) => {}
        Err(_unavailable) => {
            let told = Told::Refusal(RejectionKind::StoreUnavailable);
            return Ok(Some(Start::Tell(told)));
        }
    }
    let ready = poll_fn(|cx| service.poll_ready(cx));
    match timeout_at(deadline, ready).await {
        Ok(ready) => ready?,
        Err(_elapsed) => return Ok(Some(Start::Tell(Told::IN_FLIGHT))),
    }
    Ok(match reserve(guard, subject, report).await {
        Turn::Run(claimed) => Some(Start::Run(service, claimed)),
        Turn::Tell(Told::InFlight { .. }) => None,
        Turn::Tell(told) => Some(Start::Tell(told)),
    })
}
