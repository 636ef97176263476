//! What becomes of the handler's response: the verdict on it, and its body.

use std::pin::{Pin, pin};

use bytes::Bytes;
use http::{Response, response::Parts};
use http_body::Body;

use super::{
    limit::limited,
    run::{Ended, HandlerEnd, Run},
    settle::Settlement,
    unwind::{Panicked, catch},
};
use crate::{
    GrpcStatus, RejectionKind, ResponseBody, SavedResponse, Verdict,
    body::{Collected, Collector, Stop},
    content_type, event,
    grpc::{CODE, Protocol},
};

/// How much of a response's body is in memory.
enum Content<R> {
    /// Nothing: it is all to come.
    Streamed(R),
    Whole(Collected),
    /// It was too large, too slow or endless: what was read, and the rest.
    Stopped(&'static str, (Vec<Bytes>, Pin<Box<R>>)),
}

/// A body that broke off, or panicked.
struct BodyFailed;

impl Run {
    /// Decides how to settle by the response: by its head, or for a gRPC call, whose status may be in the trailers, by all of it.
    pub(super) fn judge<R: Body, E>(
        &self,
        response: Response<R>,
    ) -> impl Future<Output = Ended<R, E>> {
        // Out here, because an async fn would have room for the response as well as for its parts.
        let (mut head, body) = response.into_parts();
        async move {
            self.clear(&mut head);
            let mut content = Content::Streamed(body);
            if self.protocol == Protocol::Grpc {
                content = match self.collect(&head, content).await {
                    Ok(content) => content,
                    Err(BodyFailed) => return self.failed(RejectionKind::HandlerFailed),
                };
                self.read_status(&mut head, &mut content);
            }
            let told = head.extensions.get::<Verdict>().copied();
            let verdict = catch(async { self.guard.settings.policy.verdict(&head) }).await;
            let Ok(verdict) = verdict else {
                return self.failed(RejectionKind::HandlerFailed);
            };
            if verdict == Verdict::Save {
                content = match self.collect(&head, content).await {
                    Ok(content) => content,
                    Err(BodyFailed) => return self.failed(RejectionKind::HandlerFailed),
                };
            }
            let has_steps = self.context.notes().close();
            let settlement = match verdict {
                Verdict::Save => self.saved(&head, &content),
                Verdict::Tombstone => self.not_kept("policy"),
                // A refusal, or a transaction that lost, says nothing of a step that is done. Only the handler can, and by a word of its own.
                Verdict::Discard | Verdict::Conflict
                    if told != Some(Verdict::Discard) && has_steps =>
                {
                    Settlement::Abandon
                }
                Verdict::Discard | Verdict::Conflict => Settlement::Release,
                Verdict::Unknown => Settlement::Abandon,
            };
            let end = if verdict == Verdict::Conflict {
                HandlerEnd::Conflicted
            } else {
                HandlerEnd::Answered
            };
            let body = content.into_body();
            Ended {
                settlement,
                reply: Ok(Response::from_parts(head, body)),
                end,
            }
        }
    }

    /// Takes off what is ours to set, even if the handler passes on the answer of a service that has such a layer.
    fn clear(&self, head: &mut Parts) {
        let settings = &self.guard.settings;
        head.headers.remove(&settings.replay_marker);
        if let Some(name) = &settings.expiry_header {
            head.headers.remove(name);
        }
        head.extensions.remove::<GrpcStatus>();
        head.extensions.remove::<RejectionKind>();
    }

    /// Puts the status of a gRPC call where the policy sees it, and takes off what a status that the handler passes on, of a call
    /// to another service, may tell of a key of its own.
    fn read_status<R>(&self, head: &mut Parts, content: &mut Content<R>) {
        head.headers.remove(CODE);
        let status = match content {
            Content::Whole(Collected { trailers, .. }) => {
                if let Some(trailers) = trailers {
                    trailers.remove(CODE);
                    trailers.remove(&self.guard.settings.replay_marker);
                }
                Some(GrpcStatus::of(head, trailers.as_deref()))
            }
            Content::Stopped(..) | Content::Streamed(_) => GrpcStatus::of_head(head),
        };
        if let Some(status) = status {
            head.extensions.insert(status);
        }
    }

    /// Collects a body, unless that was tried before. One that is too large, too slow or endless stops.
    async fn collect<R: Body>(
        &self,
        head: &Parts,
        content: Content<R>,
    ) -> Result<Content<R>, BodyFailed> {
        let body = match content {
            Content::Streamed(body) => Box::pin(body),
            Content::Whole(_) | Content::Stopped(..) => return Ok(content),
        };
        let settings = &self.guard.settings;
        let mut collector = Collector::new(body, settings.response_limit);
        if content_type::starts_with(&head.headers, b"text/event-stream") {
            return Ok(Content::Stopped("stream", collector.into_rest()));
        }
        let stopped = limited(settings.collect_limit, pin!(catch(collector.collect(drop)))).await;
        let reason = match stopped {
            Ok(Ok(Ok(()))) => return Ok(Content::Whole(collector.into_collected())),
            Ok(Ok(Err(Stop::Failed(_))) | Err(Panicked)) => return Err(BodyFailed),
            Ok(Ok(Err(Stop::TooLarge))) => "too_large",
            Err(_elapsed) => "too_slow",
        };
        Ok(Content::Stopped(reason, collector.into_rest()))
    }

    /// Saves a whole response. What is not whole is completed as a tombstone, before the caller gets what was read and the rest.
    fn saved<R>(&self, head: &Parts, content: &Content<R>) -> Settlement {
        match content {
            Content::Whole(Collected { data, trailers }) => {
                let Some(headers) = self.guard.settings.headers.select(&head.headers) else {
                    return self.not_kept("too_large");
                };
                let (data, trailers) = (data.clone(), trailers.as_deref().cloned());
                Settlement::Complete(SavedResponse::new(head.status, headers, data, trailers))
            }
            Content::Stopped(reason, _) => self.not_kept(reason),
            Content::Streamed(_) => self.not_kept("stream"),
        }
    }

    fn not_kept(&self, reason: &'static str) -> Settlement {
        event::not_kept(self.claim.key(), reason);
        Settlement::Complete(SavedResponse::tombstone())
    }
}

impl<R> Content<R> {
    fn into_body(self) -> ResponseBody<R> {
        match self {
            Self::Streamed(body) => ResponseBody::streamed(body),
            Self::Whole(collected) => ResponseBody::collected(collected),
            Self::Stopped(_, rest) => ResponseBody::prefixed(rest),
        }
    }
}
