use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    vec,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{Collected, collect::into_bytes};

pin_project! {
    /// The response body that the caller gets: the wrapped service's own, streamed; the same bytes after they were saved;
    /// a replay; or a refusal.
    pub struct ResponseBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProjection]
    enum Inner<B> {
        Streamed { #[pin] body: B },
        Collected { body: Collected },
        Prefixed { prefix: vec::IntoIter<Bytes>, rest: Pin<Box<B>> },
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
            inner: Inner::Prefixed {
                prefix: prefix.into_iter(),
                rest,
            },
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
        let streamed = match self.project().inner.project() {
            InnerProjection::Streamed { body } => body.poll_frame(cx),
            InnerProjection::Collected { body } => {
                return Poll::Ready(body.next_frame().map(Ok));
            }
            InnerProjection::Prefixed { prefix, rest } => match prefix.next() {
                Some(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                None => rest.as_mut().poll_frame(cx),
            },
        };
        streamed.map_ok(|frame| frame.map_data(into_bytes))
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Streamed { body } => body.is_end_stream(),
            Inner::Collected { body } => body.is_end_stream(),
            Inner::Prefixed { prefix, rest } => prefix.len() == 0 && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Streamed { body } => body.size_hint(),
            Inner::Collected { body } => body.size_hint(),
            Inner::Prefixed { prefix, rest } => {
                let read: u64 = prefix.as_slice().iter().map(|data| data.len() as u64).sum();
                let rest = rest.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower().saturating_add(read));
                if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
                    hint.set_upper(upper);
                }
                hint
            }
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.inner {
            Inner::Streamed { .. } => "ResponseBody(streamed)",
            Inner::Collected { .. } => "ResponseBody(collected)",
            Inner::Prefixed { .. } => "ResponseBody(prefixed)",
        })
    }
}
