use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{Collected, collect::into_bytes};

pin_project! {
    /// The request body that the wrapped service gets: the client's own, streamed, or the same bytes collected for the fingerprint.
    pub struct RequestBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProjection]
    enum Inner<B> {
        Streamed { #[pin] body: B },
        Collected { body: Collected },
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
}

impl<B: Body> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().inner.project() {
            InnerProjection::Streamed { body } => body
                .poll_frame(cx)
                .map_ok(|frame| frame.map_data(into_bytes)),
            InnerProjection::Collected { body } => Poll::Ready(body.next_frame().map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Streamed { body } => body.is_end_stream(),
            Inner::Collected { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Streamed { body } => body.size_hint(),
            Inner::Collected { body } => body.size_hint(),
        }
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.inner {
            Inner::Streamed { .. } => "RequestBody(streamed)",
            Inner::Collected { .. } => "RequestBody(collected)",
        })
    }
}
