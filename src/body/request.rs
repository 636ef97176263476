use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{Collected, inner::Inner};

pin_project! {
    /// The request body that the wrapped service gets: the caller's own, streamed; the same bytes collected, for the
    /// fingerprint or to be sent again; or what was read of one that is too large, and then its rest.
    pub struct RequestBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

impl<B> RequestBody<B> {
    pub(crate) fn streamed(body: B) -> Self {
        Self {
            inner: Inner::Streamed { body },
        }
    }

    pub(crate) fn collected(body: Collected) -> Self {
        Self {
            inner: Inner::Collected { body },
        }
    }

    /// A body whose collection was given up: what was read of it, then the rest.
    #[cfg(feature = "client")]
    pub(crate) fn prefixed((prefix, rest): (Vec<Bytes>, Pin<Box<B>>)) -> Self {
        Self {
            inner: Inner::prefixed(prefix, rest),
        }
    }
}

impl<B: Body> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.project().inner.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestBody({})", self.inner.name())
    }
}
