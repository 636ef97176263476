use std::{future::poll_fn, ops::DerefMut, pin::Pin};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;
use tokio::task::consume_budget;

use super::Collected;

/// Collects a body up to a limit. It can be stopped at any time: what was read so far is kept, and so is the rest.
///
/// It holds the body by a pinned pointer: boxed where the rest may be wanted later, else borrowed.
pub(crate) struct Collector<P> {
    body: Pin<P>,
    limit: usize,
    data: Data,
    /// The frame that went over the limit; not joined to the data, it may be large.
    overflow: Option<Bytes>,
    trailers: Option<Box<HeaderMap>>,
}

/// Why a body was not collected to its end.
pub(crate) enum Stop<E> {
    TooLarge,
    Failed(E),
}

impl<P, B> Collector<P>
where
    P: DerefMut<Target = B>,
    B: Body,
{
    pub(crate) fn new(body: Pin<P>, limit: usize) -> Self {
        Self {
            body,
            limit,
            data: Data::One(Bytes::new()),
            overflow: None,
            trailers: None,
        }
    }

    /// Reads to the end of the body; `failed` makes what is wanted of its error. Cancel safe: a frame that was read is never lost.
    pub(crate) async fn collect<E>(
        &mut self,
        failed: impl FnOnce(B::Error) -> E,
    ) -> Result<(), Stop<E>> {
        if self.body.size_hint().lower() > self.limit as u64 {
            return Err(Stop::TooLarge);
        }
        loop {
            // A body that always has a frame ready, and an empty one, would never let a time limit be looked at.
            consume_budget().await;
            let Some(frame) = poll_fn(|cx| self.body.as_mut().poll_frame(cx)).await else {
                return Ok(());
            };
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => return Err(Stop::Failed(failed(error))),
            };
            match frame.into_data() {
                Ok(data) if data.remaining() > self.limit - self.data.len() => {
                    self.overflow = Some(into_bytes(data));
                    return Err(Stop::TooLarge);
                }
                Ok(data) => self.data.push(into_bytes(data)),
                Err(other) => {
                    // Nothing comes after trailers, and whoever sends them on doesn't look for it either.
                    if let Ok(trailers) = other.into_trailers() {
                        self.trailers = Some(Box::new(trailers));
                        return Ok(());
                    }
                }
            }
        }
    }

    /// The whole body, once it was collected.
    pub(crate) fn into_collected(self) -> Collected {
        Collected {
            data: self.data.into_bytes(),
            trailers: self.trailers,
        }
    }

    /// What was read, and the body that still has the rest.
    pub(crate) fn into_rest(self) -> (Vec<Bytes>, Pin<P>) {
        let mut prefix = vec![self.data.into_bytes()];
        prefix.extend(self.overflow);
        prefix.retain(|data| !data.is_empty());
        (prefix, self.body)
    }
}

/// Takes the bytes of any `Buf`, without a copy if it is `Bytes`.
pub(super) fn into_bytes(mut data: impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining())
}

/// One frame as it came, or several joined: a body of many tiny frames must not cost an allocation for each.
enum Data {
    One(Bytes),
    Many(BytesMut),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::One(data) => data.len(),
            Self::Many(data) => data.len(),
        }
    }

    fn push(&mut self, more: Bytes) {
        match self {
            Self::One(data) if data.is_empty() => *self = Self::One(more),
            Self::One(data) => {
                let mut joined = BytesMut::with_capacity((data.len() + more.len()) * 2);
                joined.extend_from_slice(data);
                joined.extend_from_slice(&more);
                *self = Self::Many(joined);
            }
            Self::Many(data) => data.extend_from_slice(&more),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::One(data) => data,
            Self::Many(data) => data.freeze(),
        }
    }
}
