use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use crate::SavedResponse;

/// The same response in memory of its own.
///
/// A body or a value that is a slice keeps all of the buffer that it was cut from: a handler that answers with four bytes of
/// its request would have the store hold, uncounted, the kilobytes that the connection was read into.
pub(super) fn owned(response: &SavedResponse) -> SavedResponse {
    let (Some(status), Some(headers), Some(body)) =
        (response.status(), response.headers(), response.body())
    else {
        return SavedResponse::tombstone();
    };
    SavedResponse::new(
        status,
        owned_fields(headers),
        Bytes::copy_from_slice(body),
        response.trailers().map(owned_fields),
    )
}

fn owned_fields(fields: &HeaderMap) -> HeaderMap {
    let mut fields = fields.clone();
    for value in fields.values_mut() {
        // What is a value can be made one again.
        if let Ok(mut owned) = HeaderValue::from_bytes(value.as_bytes()) {
            owned.set_sensitive(value.is_sensitive());
            *value = owned;
        }
    }
    fields
}
