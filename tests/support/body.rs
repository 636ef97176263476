//! Bodies that do what a test tells them.

use std::{
    collections::VecDeque,
    error::Error,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::{
    sync::mpsc,
    time::{Instant, Interval, interval_at},
};

/// What a body does next.
#[derive(Clone, Debug)]
pub enum Step {
    Data(&'static str),
    Trailers(HeaderMap),
    Fail,
    Panic,
    /// Nothing comes any more, and no end.
    Hang,
    /// This frame over and over, without a pause.
    Endless(&'static str),
    /// This frame every second, without an end.
    Dribble(&'static str),
}

/// A body that follows a script, and counts its frames.
#[derive(Debug)]
pub struct Script {
    steps: VecDeque<Step>,
    hint: SizeHint,
    ticks: Option<Interval>,
    frames: Arc<AtomicUsize>,
}

impl Script {
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self {
            steps: steps.into_iter().collect(),
            hint: SizeHint::new(),
            ticks: None,
            frames: Arc::default(),
        }
    }

    /// Announces this length.
    pub fn with_length(mut self, length: u64) -> Self {
        self.hint = SizeHint::with_exact(length);
        self
    }

    /// How many frames were taken.
    pub fn frames(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.frames)
    }

    fn tick(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let second = Duration::from_secs(1);
        let ticks = &mut self.ticks;
        let ticks = ticks.get_or_insert_with(|| interval_at(Instant::now() + second, second));
        ticks.poll_tick(cx).map(drop)
    }
}

impl http_body::Body for Script {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let Some(step) = self.steps.pop_front() else {
            return Poll::Ready(None);
        };
        if let Step::Hang | Step::Endless(_) | Step::Dribble(_) = step {
            self.steps.push_front(step.clone());
        }
        let frame = match step {
            Step::Data(text) | Step::Endless(text) => data(text),
            Step::Trailers(trailers) => Frame::trailers(trailers),
            Step::Fail => return Poll::Ready(Some(Err(Broken))),
            Step::Panic => panic!("a body that panics"),
            Step::Hang => return Poll::Pending,
            Step::Dribble(text) => {
                ready!(self.tick(cx));
                data(text)
            }
        };
        self.frames.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(frame)))
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

/// The error of a body that broke off.
#[derive(Debug, PartialEq)]
pub struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body broke off")
    }
}

impl Error for Broken {}

/// A body whose frames a test sends one by one; it ends when the sender is dropped.
#[derive(Debug)]
pub struct Pipe(mpsc::UnboundedReceiver<&'static str>);

impl Pipe {
    pub fn new() -> (mpsc::UnboundedSender<&'static str>, Self) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (sender, Self(receiver))
    }
}

impl http_body::Body for Pipe {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let text = ready!(self.0.poll_recv(cx));
        Poll::Ready(text.map(|text| Ok(data(text))))
    }
}
