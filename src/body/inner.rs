use std::{
    pin::Pin,
    task::{Context, Poll},
    vec,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{Collected, collect::into_bytes};

pin_project! {
    /// A body that was left alone, one in memory, or one whose collection was given up.
    #[project = InnerProjection]
    pub(super) enum Inner<B> {
        Streamed { #[pin] body: B },
        Collected { body: Collected },
        Prefixed { prefix: vec::IntoIter<Bytes>, rest: Pin<Box<B>> },
    }
}

impl<B> Inner<B> {
    pub(super) fn prefixed(prefix: Vec<Bytes>, rest: Pin<Box<B>>) -> Self {
        Self::Prefixed {
            prefix: prefix.into_iter(),
            rest,
        }
    }

    /// For `Debug` forms, which show no content.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Streamed { .. } => "streamed",
            Self::Collected { .. } => "collected",
            Self::Prefixed { .. } => "prefixed",
        }
    }
}

impl<B: Body> Body for Inner<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let streamed = match self.project() {
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
        match self {
            Self::Streamed { body } => body.is_end_stream(),
            Self::Collected { body } => body.is_end_stream(),
            Self::Prefixed { prefix, rest } => prefix.len() == 0 && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Streamed { body } => body.size_hint(),
            Self::Collected { body } => body.size_hint(),
            Self::Prefixed { prefix, rest } => {
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
