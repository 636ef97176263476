use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

/// A whole body in memory: data, then trailers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collected {
    pub(crate) data: Bytes,
    /// Boxed, as few bodies have them, and all are moved about with room for them.
    pub(crate) trailers: Option<Box<HeaderMap>>,
}

impl Collected {
    pub(super) fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        if !self.data.is_empty() {
            return Some(Frame::data(std::mem::take(&mut self.data)));
        }
        self.trailers
            .take()
            .map(|trailers| Frame::trailers(*trailers))
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    /// Exact only without trailers: over HTTP/1, a server that is told the length has no place for them.
    pub(super) fn size_hint(&self) -> SizeHint {
        let length = self.data.len() as u64;
        if self.trailers.is_none() {
            return SizeHint::with_exact(length);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(length);
        hint
    }
}

impl From<Bytes> for Collected {
    fn from(data: Bytes) -> Self {
        Self {
            data,
            trailers: None,
        }
    }
}
