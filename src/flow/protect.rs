use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    Guard,
    detached::detached,
    handler::Handler,
    report::Report,
    retry::{Answer, Retries, answer},
    run::Run,
    subject::{Read, Subject, read},
    unwind::{Panicked, catch},
    wait::{Start, claim},
};
use crate::{RejectionKind, RequestBody, ResponseBody, grpc::Protocol};

/// Answers a request that engages. Whatever panics on the way is a 500; a claim that it held is settled by [`Run`].
pub(crate) fn protect<S, B, R>(
    guard: Arc<Guard>,
    protocol: Protocol,
    mut ready: S,
    request: Request<B>,
) -> impl Future<Output = Answer<R, S::Error>> + Send
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Body + Send + 'static,
    R::Data: Send,
{
    let (parts, body) = request.into_parts();
    // Boxed, or each stage on the way to the handler would have a place for it.
    let parts = Box::new(parts);
    async move {
        let failed = |Panicked| Ok(guard.refuse(protocol, RejectionKind::HandlerFailed));
        match catch(read(&guard, protocol, parts, body)).await {
            Ok(Ok(Read::Keyed(subject, body))) => {
                let answer = catch(keyed(&guard, ready, subject, body)).await;
                answer.unwrap_or_else(failed)
            }
            // As without the layer, panics included.
            Ok(Ok(Read::Unkeyed(request))) => {
                Ok(ready.call(*request).await?.map(ResponseBody::streamed))
            }
            Ok(Err(rejection)) => {
                Report::new(&guard, None).answered(Ok(guard.refuse(protocol, rejection)))
            }
            Err(panicked) => Report::new(&guard, None).answered(failed(panicked)),
        }
    }
}

/// Reserves the key, then runs the handler or answers without it.
fn keyed<S, B, R>(
    guard: &Arc<Guard>,
    ready: S,
    subject: Box<Subject>,
    body: Option<B>,
) -> impl Future<Output = Answer<R, S::Error>> + Send
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Body + Send + 'static,
    R::Data: Send,
{
    let mut report = Report::new(guard, Some(subject.record_key));
    let span = report.span();
    span.around(async move {
        let protocol = subject.protocol;
        // Cloned while there is no claim yet that a clone's panic could leave behind.
        let retries = Retries::of(guard, &subject, &ready);
        let (ready, claimed) = match claim(guard, &subject, ready, &mut report).await? {
            Start::Run(ready, claimed) => (ready, claimed),
            Start::Tell(told) => return report.answered(Ok(guard.tell(protocol, told))),
        };
        let (run, request) = Run::new(guard, claimed, *subject, body);
        let handler = Handler::new(ready, request);
        let answer = detached(guard, answer(run, handler, retries, report)).await;
        answer.unwrap_or_else(|| Ok(guard.refuse(protocol, RejectionKind::HandlerFailed)))
    })
}
