use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    Guard,
    detached::detached,
    reserve::{Turn, reserve},
    run::Run,
    subject::{Read, read},
    unwind::{Panicked, catch},
    wait,
};
use crate::{OnInFlight, RejectionKind, RequestBody, ResponseBody};

/// Answers a request that engages. Whatever panics on the way is a 500; a claim that it held is settled by [`Run`].
pub(crate) async fn protect<S, B, R>(
    guard: Arc<Guard>,
    ready: S,
    request: Request<B>,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Body + Send + 'static,
    R::Data: Send,
{
    match catch(steps(&guard, ready, request)).await {
        Ok(answer) => answer,
        Err(Panicked) => Ok(guard.refuse(RejectionKind::HandlerFailed)),
    }
}

/// Read the key, reserve it, then run the handler or answer without it.
async fn steps<S, B, R>(
    guard: &Arc<Guard>,
    mut ready: S,
    request: Request<B>,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Body + Send + 'static,
    R::Data: Send,
{
    let (subject, body) = match read(guard, request).await {
        Ok(Read::Keyed(subject, body)) => (subject, body),
        Ok(Read::Unkeyed(request)) => {
            return Ok(ready.call(*request).await?.map(ResponseBody::streamed));
        }
        Err(rejection) => return Ok(guard.refuse(rejection)),
    };

    let (turn, ready) = match (reserve(guard, &subject).await, guard.settings.on_in_flight) {
        (Turn::InFlight, OnInFlight::Wait(limit)) => {
            let unready = ready.clone();
            // Its permit would keep others from running, the one that is waited for among them.
            drop(ready);
            wait::turn(guard, &subject, unready, limit).await?
        }
        (turn, _) => (turn, Some(ready)),
    };

    match (turn, ready) {
        (Turn::Run(claimed), Some(ready)) => {
            let (run, request) = Run::new(guard, claimed, subject, body);
            let answer = detached(guard, run.answer(ready, request)).await;
            answer.unwrap_or_else(|| Ok(guard.refuse(RejectionKind::HandlerFailed)))
        }
        (turn, _) => Ok(guard.answer(turn)),
    }
}
