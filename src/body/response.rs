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
    /// The response body that the caller gets: the wrapped service's own, streamed; the same bytes after they were
    /// collected; a replay; or a refusal.
    pub struct ResponseBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn streamed(body: B) -> Self {
        Self {
            inner: Inner::Streamed { body },
        }
    }

    pub(crate) fn collected(body: impl Into<Collected>) -> Self {
        Self {
            inner: Inner::Collected { body: body.into() },
        }
    }

    /// A body whose collection was given up: what was read of it, then the rest.
    pub(crate) fn prefixed((prefix, rest): (Vec<Bytes>, Pin<Box<B>>)) -> Self {
        Self {
            inner: Inner::prefixed(prefix, rest),
        }
    }
}

/// An empty body, as layers around this one need it for answers of their own (tower-http's CORS and timeout, for example).
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::collected(Bytes::new())
    }
}

impl<B: Body> Body for ResponseBody<B> {
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

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResponseBody({})", self.inner.name())
    }
}
