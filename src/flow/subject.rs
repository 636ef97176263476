use std::pin::pin;

use http::{Request, request::Parts};
use http_body::Body;

use super::Guard;
use crate::{
    Fingerprint, IdempotencyKey, InvalidKey, OnStoreFailure, RecordKey, Rejection, RejectionKind,
    RequestBody, Scope,
    body::{Collected, Collector, Stop},
    grpc::Protocol,
    key_by::{self, Source},
    store::Nonce,
};

/// A keyed request without its streamed body, and what was computed from it, once.
#[derive(Clone)]
pub(super) struct Subject {
    pub(super) protocol: Protocol,
    pub(super) key: IdempotencyKey,
    pub(super) scope: Scope,
    pub(super) record_key: RecordKey,
    pub(super) fingerprint: Fingerprint,
    pub(super) nonce: Nonce,
    pub(super) parts: Box<Parts>,
    /// The body, where the key or the fingerprint needed it.
    pub(super) collected: Option<Collected>,
}

/// What reading a request gave.
pub(super) enum Read<B> {
    /// It has a key. The body is there if it was not collected.
    Keyed(Box<Subject>, Option<B>),
    /// It has none and needs none, or is no unary call.
    Unkeyed(Box<Request<RequestBody<B>>>),
}

impl<B> Read<B> {
    fn unkeyed(parts: Box<Parts>, body: RequestBody<B>) -> Self {
        Self::Unkeyed(Box::new(Request::from_parts(*parts, body)))
    }
}

/// Reads key, scope and fingerprint. What the head alone decides is decided before the body is polled.
pub(super) async fn read<B: Body>(
    guard: &Guard,
    protocol: Protocol,
    parts: Box<Parts>,
    body: B,
) -> Result<Read<B>, Rejection> {
    let settings = &guard.settings;
    if protocol == Protocol::Grpc && !settings.is_unary(&parts) {
        return Ok(Read::unkeyed(parts, RequestBody::streamed(body)));
    }
    let key = match head_key(guard, &parts)? {
        HeadKey::Missing if settings.key_required => return Err(RejectionKind::MissingKey.into()),
        HeadKey::Missing => {
            return Ok(Read::unkeyed(parts, RequestBody::streamed(body)));
        }
        key @ (HeadKey::Found(_) | HeadKey::InBody) => key,
    };
    let scope = settings.scope.scope(&parts);
    let scope = scope.ok_or(RejectionKind::MissingScope)?;
    // The store would not be asked: no body is collected for that.
    if settings.on_store_failure == OnStoreFailure::Refuse && guard.shared.is_overdue(settings) {
        guard.shared.settlements.hurry();
        return Err(RejectionKind::StoreUnavailable.into());
    }

    let reads_body = matches!(key, HeadKey::InBody) || guard.fingerprint.reads_body();
    let (collected, body) = if reads_body {
        (Some(collect(body, settings.request_limit).await?), None)
    } else {
        (None, Some(body))
    };
    let key = match key {
        HeadKey::Found(key) => key,
        HeadKey::InBody | HeadKey::Missing => match body_key(guard, &parts, &collected)? {
            Some(key) => key,
            None if settings.key_required => return Err(RejectionKind::MissingKey.into()),
            None => {
                let body = RequestBody::collected(collected.unwrap_or_default());
                return Ok(Read::unkeyed(parts, body));
            }
        },
    };
    let data = collected.as_ref().map(|body| &*body.data);
    let identity = guard.fingerprint.identity(&parts, data);
    let subject = Subject {
        protocol,
        record_key: RecordKey::derive(&settings.namespace, &scope, &key),
        fingerprint: guard.store.fingerprint(&identity),
        nonce: Nonce::random(),
        key,
        scope,
        parts,
        collected,
    };
    Ok(Read::Keyed(Box::new(subject), body))
}

enum HeadKey {
    Found(IdempotencyKey),
    InBody,
    Missing,
}

fn head_key(guard: &Guard, parts: &Parts) -> Result<HeadKey, InvalidKey> {
    let format = &guard.settings.key_format;
    let key = match &guard.settings.key.0 {
        Source::Header(name) => key_by::from_header(name, &parts.headers, format)?,
        Source::Parts(key) => key(parts)
            .map(|key| format.check(key.as_bytes()))
            .transpose()?,
        Source::Body(_) => return Ok(HeadKey::InBody),
    };
    Ok(key.map_or(HeadKey::Missing, HeadKey::Found))
}

fn body_key(
    guard: &Guard,
    parts: &Parts,
    collected: &Option<Collected>,
) -> Result<Option<IdempotencyKey>, InvalidKey> {
    let (Source::Body(key), Some(body)) = (&guard.settings.key.0, collected) else {
        return Ok(None);
    };
    key(parts, &body.data)
        .map(|key| guard.settings.key_format.check(key.as_bytes()))
        .transpose()
}

async fn collect<B: Body>(body: B, limit: usize) -> Result<Collected, Rejection> {
    let body = pin!(body);
    let mut collector = Collector::new(body, limit);
    match collector.collect(drop).await {
        Ok(()) => Ok(collector.into_collected()),
        Err(Stop::TooLarge) => Err(RejectionKind::BodyTooLarge.into()),
        Err(Stop::Failed(_)) => Err(RejectionKind::IncompleteBody.into()),
    }
}

impl From<InvalidKey> for Rejection {
    fn from(invalid: InvalidKey) -> Self {
        Self::because(
            RejectionKind::InvalidKey,
            format!("The idempotency key can't be read: {invalid}."),
        )
    }
}
