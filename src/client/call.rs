use std::{future::poll_fn, sync::Arc};

use http::{Request, Response};
use http_body::Body;
use tokio::time::{sleep, timeout_at};
use tower_service::Service;

use super::{
    Error, ErrorKind, GaveUp, Resumed,
    attempt::attempt,
    outgoing::{self, Outgoing},
    progress::Progress,
    settings::Settings,
};
use crate::{RequestBody, ResponseBody, error::BoxError};

/// Makes one call: a key, and as many attempts as it takes.
pub(super) async fn call<S, B, R>(
    settings: Arc<Settings>,
    mut service: S,
    request: Request<B>,
) -> Result<Response<ResponseBody<R>>, Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
    R: Body,
    R::Error: Into<BoxError>,
{
    settings.budget.deposit();
    let (mut head, body) = request.into_parts();
    let resumed: Option<Resumed> = head.extensions.get().copied();
    let key = outgoing::key(&settings, &mut head)
        .map_err(|invalid| Error::unsent(invalid, resumed.is_some()))?;
    let mut progress = Progress::new(&settings, key, resumed);
    let deadline = progress.deadline;
    let collected = outgoing::collect(head, body, settings.request_limit);
    let (mut request, repeatable) = match timeout_at(deadline, collected).await {
        Ok(Ok(Outgoing::Repeatable(repeatable))) => (repeatable.request(), Some(repeatable)),
        Ok(Ok(Outgoing::Once(request))) => (request, None),
        Ok(Err(error)) => return Err(progress.error(ErrorKind::RequestBody, error)),
        Err(_elapsed) => return Err(progress.too_late()),
    };
    loop {
        let attempt_end = progress.begin_attempt()?;
        let end = attempt(&settings, &mut service, request, attempt_end).await;
        let Some(decision) = progress.note(&end) else {
            return progress.finish(end, None);
        };
        let Some(repeatable) = &repeatable else {
            return progress.finish(end, Some(GaveUp::Body));
        };
        let pause = match progress.pause(&end, decision) {
            Ok(pause) => pause,
            Err(gave_up) => return progress.finish(end, Some(gave_up)),
        };
        // Lets go of the connection, and of whatever permit comes with it.
        drop(end);
        sleep(pause).await;
        match timeout_at(deadline, poll_fn(|cx| service.poll_ready(cx))).await {
            Ok(Ok(())) => request = repeatable.request(),
            Ok(Err(error)) => return Err(progress.error(ErrorKind::Service, error)),
            Err(_elapsed) => return Err(progress.too_late()),
        }
    }
}
