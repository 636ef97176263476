use http::{Request, request::Parts};
use http_body::Body;

use super::{Resumed, settings::Settings};
use crate::{
    IdempotencyKey, InvalidKey, KeyFormat, RequestBody,
    body::{Collected, Collector, Stop},
    error::BoxError,
    key_by,
};

/// The key of a request: the caller's, or a new one. It is in the head then.
pub(super) fn key(settings: &Settings, head: &mut Parts) -> Result<IdempotencyKey, InvalidKey> {
    let named = key_by::from_header(&settings.header, &head.headers, &KeyFormat::default())?;
    let given = head.extensions.get::<IdempotencyKey>();
    if let Some(named) = named {
        return match given {
            Some(given) if *given != named => Err(InvalidKey::TWO_KEYS),
            _ => Ok(named),
        };
    }
    let key = match given {
        Some(given) => given.clone(),
        // With a new key it would be another call.
        None if head.extensions.get::<Resumed>().is_some() => return Err(InvalidKey::NOT_RESUMED),
        None => IdempotencyKey::random(),
    };
    let value = match settings.quoted {
        true => key.to_quoted_header_value(),
        false => key.to_header_value(),
    };
    head.headers.insert(settings.header.clone(), value);
    Ok(key)
}

/// A request that can be sent any number of times.
pub(super) struct Repeatable {
    head: Parts,
    body: Collected,
}

impl Repeatable {
    pub(super) fn request<B>(&self) -> Request<RequestBody<B>> {
        let body = RequestBody::collected(self.body.clone());
        Request::from_parts(self.head.clone(), body)
    }
}

/// What the collection of a request gave.
pub(super) enum Outgoing<B> {
    Repeatable(Repeatable),
    /// Its body is too large.
    Once(Request<RequestBody<B>>),
}

/// Collects a request, if it isn't too large for that.
pub(super) async fn collect<B>(head: Parts, body: B, limit: usize) -> Result<Outgoing<B>, BoxError>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let mut collector = Collector::new(Box::pin(body), limit);
    match collector.collect(Into::into).await {
        Ok(()) => {
            let body = collector.into_collected();
            Ok(Outgoing::Repeatable(Repeatable { head, body }))
        }
        Err(Stop::TooLarge) => {
            let body = RequestBody::prefixed(collector.into_rest());
            Ok(Outgoing::Once(Request::from_parts(head, body)))
        }
        Err(Stop::Failed(error)) => Err(error),
    }
}
