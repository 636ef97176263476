use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::{StoreError, body::Collected, codec};

/// A response as it is kept under a key: status, headers, body and trailers; or a tombstone, which keeps none of them.
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct SavedResponse(Option<Arc<Kept>>);

/// What a response that is not a tombstone has.
#[derive(PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Kept {
    /// The body with its trailers, to be sent.
    pub(crate) fn collected(&self) -> Collected {
        Collected {
            data: self.body.clone(),
            trailers: self.trailers.clone().map(Box::new),
        }
    }
}

impl SavedResponse {
    /// A response with these parts, all of which are replayed.
    #[must_use]
    pub fn new(
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
        trailers: Option<HeaderMap>,
    ) -> Self {
        Self(Some(Arc::new(Kept {
            status,
            headers,
            body,
            trailers,
        })))
    }

    /// Done, but the response is not kept: a retry is answered 409 `response_not_kept`.
    #[must_use]
    pub fn tombstone() -> Self {
        Self(None)
    }

    /// Whether the response was not kept.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.0.is_none()
    }

    /// The status; none for a tombstone.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        self.0.as_ref().map(|kept| kept.status)
    }

    /// The saved headers; none for a tombstone.
    #[must_use]
    pub fn headers(&self) -> Option<&HeaderMap> {
        self.0.as_ref().map(|kept| &kept.headers)
    }

    /// The body; none for a tombstone.
    #[must_use]
    pub fn body(&self) -> Option<&Bytes> {
        self.0.as_ref().map(|kept| &kept.body)
    }

    /// The trailers, if there were any.
    #[must_use]
    pub fn trailers(&self) -> Option<&HeaderMap> {
        self.0.as_ref()?.trailers.as_ref()
    }

    /// The bytes to write into a store: a versioned format that later releases go on reading.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        codec::encode(self.kept())
    }

    /// Reads what [`encode`](Self::encode) wrote. Bytes that can't be read are a tombstone: the operation was done,
    /// and a retry must not run it again.
    ///
    /// # Errors
    ///
    /// [`Other`](crate::StoreErrorKind::Other) if a later release wrote them, in a format that this one doesn't know:
    /// the store was reached, so that is no reason to run unprotected.
    pub fn decode(bytes: impl Into<Bytes>) -> Result<Self, StoreError> {
        Ok(Self(codec::decode(bytes.into())?.map(Arc::new)))
    }

    pub(crate) fn kept(&self) -> Option<&Kept> {
        self.0.as_deref()
    }

    /// About how many bytes of memory it takes.
    pub(crate) fn size(&self) -> usize {
        self.kept().map_or(0, |kept| {
            let fields = |map: &HeaderMap| -> usize {
                map.iter()
                    .map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD)
                    .sum()
            };
            kept.body.len() + fields(&kept.headers) + kept.trailers.as_ref().map_or(0, fields)
        })
    }
}

/// What a header costs in a map besides its text, roughly.
const HEADER_OVERHEAD: usize = 64;

impl fmt::Debug for SavedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kept() {
            None => f.write_str("SavedResponse(tombstone)"),
            Some(kept) => write!(
                f,
                "SavedResponse({}, {} bytes)",
                kept.status,
                kept.body.len()
            ),
        }
    }
}
