//! The byte format of a saved response, all integers big-endian:
//!
//! ```text
//! version: u8 = 1 | kind: u8 = 0 (tombstone) or 1 (response, and what follows)
//! status: u16 | headers | body length: u32, body | trailers present: u8 = 0 or 1, trailers
//! headers, trailers: count: u32, then each: name length: u32, name, value length: u32, value
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::{StoreError, StoreErrorKind, saved::Kept};

const VERSION: u8 = 1;
const TOMBSTONE: u8 = 0;
const RESPONSE: u8 = 1;

pub(crate) fn encode(kept: Option<&Kept>) -> Bytes {
    let Some(kept) = kept else {
        return Bytes::from_static(&[VERSION, TOMBSTONE]);
    };
    let mut out = BytesMut::with_capacity(kept.body.len() + 512);
    out.put_slice(&[VERSION, RESPONSE]);
    out.put_u16(kept.status.as_u16());
    put_headers(&mut out, &kept.headers);
    put_field(&mut out, &kept.body);
    match &kept.trailers {
        None => out.put_u8(0),
        Some(trailers) => {
            out.put_u8(1);
            put_headers(&mut out, trailers);
        }
    }
    out.freeze()
}

/// `Ok(None)` is a tombstone, and so is whatever can't be read.
pub(crate) fn decode(mut bytes: Bytes) -> Result<Option<Kept>, StoreError> {
    match bytes.first() {
        Some(version) if *version > VERSION => Err(StoreError::new(
            StoreErrorKind::Other,
            format!("a saved response has format {version}, this release reads up to {VERSION}"),
        )),
        _ => Ok(read(&mut bytes).filter(|_| bytes.is_empty())),
    }
}

fn read(bytes: &mut Bytes) -> Option<Kept> {
    if bytes.try_get_u8().ok()? != VERSION || bytes.try_get_u8().ok()? != RESPONSE {
        return None;
    }
    Some(Kept {
        status: StatusCode::from_u16(bytes.try_get_u16().ok()?).ok()?,
        headers: get_headers(bytes)?,
        body: get_field(bytes)?,
        trailers: match bytes.try_get_u8().ok()? {
            0 => None,
            1 => Some(get_headers(bytes)?),
            _ => return None,
        },
    })
}

fn put_headers(out: &mut BytesMut, headers: &HeaderMap) {
    put_length(out, headers.len());
    for (name, value) in headers {
        put_field(out, name.as_str().as_bytes());
        put_field(out, value.as_bytes());
    }
}

fn get_headers(bytes: &mut Bytes) -> Option<HeaderMap> {
    let count = bytes.try_get_u32().ok()?;
    let mut headers = HeaderMap::new();
    for _ in 0..count {
        let name = HeaderName::from_bytes(&get_field(bytes)?).ok()?;
        let value = HeaderValue::from_maybe_shared(get_field(bytes)?).ok()?;
        headers.try_append(name, value).ok()?;
    }
    Some(headers)
}

fn put_field(out: &mut BytesMut, field: &[u8]) {
    put_length(out, field.len());
    out.put_slice(field);
}

fn get_field(bytes: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(bytes.try_get_u32().ok()?).ok()?;
    (length <= bytes.len()).then(|| bytes.split_to(length))
}

/// The layer's limits keep every length far below 4 GiB; a length that isn't is written so that the record reads as corrupt,
/// which is a tombstone.
fn put_length(out: &mut BytesMut, length: usize) {
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}
