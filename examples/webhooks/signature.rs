use std::{
    collections::HashMap,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    body::{Body, Bytes},
    extract::{FromRequest, Request, State},
    http::{HeaderMap, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Each sender's own.
pub(crate) type Secrets = HashMap<String, Vec<u8>>;

/// Who has signed: the scope of its events' ids.
#[derive(Clone)]
pub(crate) struct Sender(pub(crate) String);

/// How far a signature's time may be from this machine's, in seconds. Whoever has seen a delivery can repeat it for so long, and
/// gets its answer from the record.
const TOLERANCE: u64 = 300;

/// Outside of the idempotency layer: what isn't signed takes no key, and learns nothing of those that are taken.
pub(crate) async fn verify(
    State(secrets): State<Arc<Secrets>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    // What is signed are the bytes as they came, up to the limit of `DefaultBodyLimit`: not what a parser makes of them.
    let request = Request::from_parts(parts.clone(), body);
    let body = match Bytes::from_request(request, &()).await {
        Ok(body) => body,
        Err(rejection) => return rejection.into_response(),
    };
    let Some(sender) = sender(&secrets, &parts.headers, &body) else {
        return (StatusCode::UNAUTHORIZED, "no valid signature").into_response();
    };
    parts.extensions.insert(sender);
    // The same bytes, shared: the layer reads the id from them, and the handler the event.
    next.run(Request::from_parts(parts, Body::from(body))).await
}

fn sender(secrets: &Secrets, headers: &HeaderMap, body: &[u8]) -> Option<Sender> {
    let name = headers.get("webhook-sender")?.to_str().ok()?;
    let signature = headers.get("webhook-signature")?.to_str().ok()?;
    let (time, mac) = signature.strip_prefix("t=")?.split_once(",v1=")?;

    let mut expected = Hmac::<Sha256>::new_from_slice(secrets.get(name)?).ok()?;
    expected.update(time.as_bytes());
    expected.update(b".");
    expected.update(body);
    // Takes as long for any wrong signature, however much of it is right.
    expected.verify_slice(&bytes_of(mac)?).ok()?;
    let age = now()?.abs_diff(time.parse().ok()?);
    (age <= TOLERANCE).then(|| Sender(name.to_owned()))
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}

/// In seconds.
#[allow(
    clippy::disallowed_methods,
    reason = "the sender's clock can be compared with this machine's only"
)]
fn now() -> Option<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}
