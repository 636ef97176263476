use http::{Request, Response, response::Parts};
use http_body::Body;
use tokio::time::{Instant, timeout_at};
use tower_service::Service;

use super::{
    Answer, AttemptEnd,
    answer::{Reading, is_problem},
    meaning::Meaning,
    settings::Settings,
};
use crate::{
    RequestBody, ResponseBody,
    body::{Collected, Collector, Stop},
    content_type, defaults,
    error::BoxError,
    grpc::Protocol,
};

/// What an attempt ended with.
pub(super) enum End<R> {
    Answered(Box<Answered<R>>),
    Failed(BoxError),
    TimedOut,
}

pub(super) struct Answered<R> {
    pub(super) head: Parts,
    pub(super) body: ResponseBody<R>,
    pub(super) reading: Reading,
}

impl<R> End<R> {
    /// As a policy sees it.
    pub(super) fn seen(&self) -> AttemptEnd<'_> {
        match self {
            Self::Answered(answered) => {
                AttemptEnd::Answered(Answer::new(&answered.head, &answered.reading))
            }
            Self::Failed(error) => AttemptEnd::Failed(&**error),
            Self::TimedOut => AttemptEnd::TimedOut,
        }
    }

    pub(super) fn meaning(&self) -> Meaning {
        match self.seen() {
            AttemptEnd::Answered(answer) => answer.meaning(),
            AttemptEnd::Failed(_) | AttemptEnd::TimedOut => Meaning::Failed,
        }
    }
}

/// Sends a request by a service that is ready, and waits for the answer.
pub(super) async fn attempt<S, B, R>(
    settings: &Settings,
    service: &mut S,
    request: Request<RequestBody<B>>,
    end: Instant,
) -> End<R>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: Body,
    R::Error: Into<BoxError>,
{
    let protocol = Protocol::of(request.headers());
    let response = match timeout_at(end, service.call(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return End::Failed(error.into()),
        Err(_elapsed) => return End::TimedOut,
    };
    match read(settings, protocol, response, end).await {
        Ok(Some(answered)) => End::Answered(Box::new(answered)),
        Ok(None) => End::TimedOut,
        Err(error) => End::Failed(error),
    }
}

/// Collects the response's body, if it may be collected and comes in time. A problem document that doesn't come is no answer.
async fn read<R>(
    settings: &Settings,
    protocol: Protocol,
    response: Response<R>,
    end: Instant,
) -> Result<Option<Answered<R>>, BoxError>
where
    R: Body,
    R::Error: Into<BoxError>,
{
    let (head, body) = response.into_parts();
    let answered = |head: Parts, body: ResponseBody<R>| Answered {
        reading: Reading::of(protocol, &head, None, None, &settings.replay_marker),
        head,
        body,
    };
    let limit = limit(settings, &head);
    if limit == 0 && !body.is_end_stream() {
        return Ok(Some(answered(head, ResponseBody::streamed(body))));
    }
    let collected = if body.is_end_stream() {
        Collected::default()
    } else {
        let mut collector = Collector::new(Box::pin(body), limit);
        let end = end.min(Instant::now() + defaults::COLLECT_LIMIT);
        match timeout_at(end, collector.collect(Into::into)).await {
            Ok(Ok(())) => collector.into_collected(),
            Ok(Err(Stop::Failed(error))) => return Err(error),
            Err(_elapsed) if is_problem(&head.headers) => return Ok(None),
            Ok(Err(Stop::TooLarge)) | Err(_) => {
                let body = ResponseBody::prefixed(collector.into_rest());
                return Ok(Some(answered(head, body)));
            }
        }
    };
    let Collected { data, trailers } = &collected;
    Ok(Some(Answered {
        reading: Reading::of(
            protocol,
            &head,
            Some(data),
            trailers.as_deref(),
            &settings.replay_marker,
        ),
        head,
        body: ResponseBody::collected(collected),
    }))
}

/// How much of the response's body may be collected.
fn limit(settings: &Settings, head: &Parts) -> usize {
    if is_problem(&head.headers) {
        // Whether to retry may depend on it.
        settings.response_limit.max(PROBLEM_LIMIT)
    } else if content_type::starts_with(&head.headers, b"text/event-stream") {
        0
    } else {
        settings.response_limit
    }
}

/// The largest problem document that is read in any case: ours have a few hundred bytes.
const PROBLEM_LIMIT: usize = 16 * 1024;
