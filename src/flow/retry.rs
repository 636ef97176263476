use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use http::{Request, Response};
use http_body::Body;
use tokio::time::{sleep, timeout};
use tower_service::Service;

use super::{
    Guard,
    handler::Handler,
    report::Report,
    run::Run,
    subject::Subject,
    wait::{Start, claim},
};
use crate::{
    RejectionKind, RequestBody, ResponseBody, drain::DrainToken, event, grpc::Protocol, jitter,
    store::Nonce,
};

/// What the caller gets.
pub(super) type Answer<R, E> = Result<Response<ResponseBody<R>>, E>;

/// The end of a run whose transaction lost against another one. Nothing of it is left.
pub(super) struct Conflict<E> {
    guard: Arc<Guard>,
    protocol: Protocol,
    /// The wrapped service's own error, if that was its answer.
    error: Option<E>,
    refusal: RejectionKind,
    /// There is more to come, whatever the run counted for.
    _counted: DrainToken,
}

impl<E> Conflict<E> {
    pub(super) fn new(guard: &Arc<Guard>, protocol: Protocol, error: Option<E>) -> Self {
        Self {
            guard: Arc::clone(guard),
            protocol,
            error,
            refusal: RejectionKind::NotCommitted,
            _counted: guard.settings.drain.token(),
        }
    }

    /// A step of it is done, so that something is left.
    pub(super) fn after_a_step(self) -> Self {
        Self {
            refusal: RejectionKind::OutcomePending,
            ..self
        }
    }

    /// What the caller gets if the handler doesn't run again.
    fn answer<R>(self) -> Answer<R, E> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.guard.refuse(self.protocol, self.refusal)),
        }
    }
}

/// The answer of a run, or of the last one, if its transaction loses against another one and may be repeated.
///
/// Boxed, because it is by far the largest part of what answers a request, and moved about if it isn't. A block in an ordinary fn, because an
/// async fn holds twice what it borrows of its arguments.
pub(super) fn answer<S, B, R>(
    mut run: Run,
    handler: Pin<Box<Handler<S, Request<RequestBody<B>>>>>,
    retries: Option<Box<Retries<S>>>,
    mut report: Report,
) -> Pin<Box<impl Future<Output = Answer<R, S::Error>>>>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
    R: Body,
{
    Box::pin(async move {
        let first = run.answer(handler, &mut report).await;
        drop(run);
        let answer = match (first, retries) {
            (Ok(answer), _) => answer,
            (Err(conflict), None) => conflict.answer(),
            (Err(conflict), Some(retries)) => Box::pin(retries.answer(conflict, &mut report)).await,
        };
        report.answered(answer)
    })
}

/// What it takes to run a handler again.
pub(super) struct Retries<S> {
    guard: Arc<Guard>,
    subject: Subject,
    unready: S,
}

impl<S> Retries<S> {
    /// None, if a handler runs once.
    pub(super) fn of(guard: &Arc<Guard>, subject: &Subject, ready: &S) -> Option<Box<Self>>
    where
        S: Clone,
    {
        (guard.settings.transaction_retries > 0).then(|| {
            Box::new(Self {
                guard: Arc::clone(guard),
                subject: subject.clone(),
                // A clone isn't ready, and so has no permit.
                unready: ready.clone(),
            })
        })
    }

    /// Reserves the key anew and runs the handler again, until its transaction doesn't lose or the last retry did.
    async fn answer<B, R>(
        self: Box<Self>,
        mut conflict: Conflict<S::Error>,
        report: &mut Report,
    ) -> Answer<R, S::Error>
    where
        S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
        R: Body,
    {
        let Self {
            guard,
            subject,
            unready,
        } = *self;
        let protocol = subject.protocol;
        for retry in 1..=guard.settings.transaction_retries {
            event::run_again(&subject.record_key, retry);
            sleep(pause_before(retry)).await;
            let mut subject = subject.clone();
            subject.nonce = Nonce::random();
            // Readied before the key is reserved, as for every run.
            let mut service = unready.clone();
            let ready = poll_fn(|cx| service.poll_ready(cx));
            let Ok(ready) = timeout(guard.settings.run_limit, ready).await else {
                break;
            };
            ready?;
            let (ready, claimed) = match claim(&guard, &subject, service, report).await? {
                Start::Run(ready, claimed) => (ready, claimed),
                Start::Tell(told) => return Ok(guard.tell(protocol, told)),
            };
            let (mut run, request) = Run::new(&guard, claimed, subject, None);
            drop(conflict);
            match run.answer(Handler::new(ready, request), report).await {
                Ok(answer) => return answer,
                Err(again) => conflict = again,
            }
        }
        conflict.answer()
    }
}

/// Long enough for the other transaction to end, and random, or those who lost against each other would meet again.
fn pause_before(retry: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(retry - 1));
    let longest = doubled.min(LONGEST_PAUSE);
    jitter::within(longest / 2..=longest)
}

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_double_up_to_a_bound_and_are_half_random() {
        for (retry, longest) in [(1, 10), (2, 20), (7, 640), (8, 1_000), (u32::MAX, 1_000)] {
            let longest = Duration::from_millis(longest);
            let pause = pause_before(retry);
            assert!(
                (longest / 2..=longest).contains(&pause),
                "{retry}: {pause:?}"
            );
        }
    }
}
