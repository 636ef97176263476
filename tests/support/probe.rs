//! A handler that counts its runs, and that a test can hold in mid-run.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::{sync::watch, task::JoinHandle};
use tower::{Service, ServiceExt, service_fn};
use tower_idempotency::{IdempotencyContext, RequestBody};

use super::{Answer, read};

/// What the handler answers: a response, or its own error.
pub type Answered = Result<Response<Full<Bytes>>, &'static str>;

/// The handler. Clones share everything.
#[derive(Clone)]
pub struct Probe(Arc<Inner>);

struct Inner {
    started: watch::Sender<usize>,
    effects: AtomicUsize,
    gate: watch::Sender<Gate>,
    contexts: Mutex<Vec<IdempotencyContext>>,
    answer: Box<dyn Fn(usize) -> Answered + Send + Sync>,
}

/// Which runs may go on to their effect.
#[derive(Default)]
struct Gate {
    all: bool,
    some: HashSet<usize>,
}

impl Probe {
    /// Answers 201 `run n` at once.
    pub fn new() -> Self {
        Self::answering(|run| Ok(created(run)))
    }

    /// Answers at once what the closure makes of the number of the run.
    pub fn answering(answer: impl Fn(usize) -> Answered + Send + Sync + 'static) -> Self {
        let probe = Self(Arc::new(Inner {
            started: watch::Sender::new(0),
            effects: AtomicUsize::new(0),
            gate: watch::Sender::default(),
            contexts: Mutex::default(),
            answer: Box::new(answer),
        }));
        probe.open();
        probe
    }

    /// Holds all runs before their effect, but for those that were let through.
    pub fn shut(self) -> Self {
        self.0.gate.send_modify(|gate| gate.all = false);
        self
    }

    /// Holds no run any more.
    pub fn open(&self) {
        self.0.gate.send_modify(|gate| gate.all = true);
    }

    /// Lets this run through.
    pub fn let_through(&self, run: usize) {
        self.0.gate.send_modify(|gate| {
            gate.some.insert(run);
        });
    }

    /// How many runs were started.
    pub fn runs(&self) -> usize {
        *self.0.started.borrow()
    }

    /// How many had their effect.
    pub fn effects(&self) -> usize {
        self.0.effects.load(Ordering::SeqCst)
    }

    /// Waits until so many runs were started.
    pub async fn started(&self, runs: usize) {
        let mut started = self.0.started.subscribe();
        let reached = started.wait_for(|started| *started >= runs);
        drop(reached.await.expect("the probe lives"));
    }

    /// What this run, counted from 1, was told.
    pub fn context(&self, run: usize) -> IdempotencyContext {
        let contexts = self.0.contexts.lock();
        contexts.unwrap_or_else(PoisonError::into_inner)[run - 1].clone()
    }

    /// The handler as a service.
    pub fn service<B: Send + 'static>(
        &self,
    ) -> impl Service<
        Request<RequestBody<B>>,
        Response = Response<Full<Bytes>>,
        Error = &'static str,
        Future: Send,
    > + Clone
    + Send
    + 'static {
        let probe = self.clone();
        service_fn(move |request: Request<RequestBody<B>>| {
            let probe = probe.clone();
            async move { probe.run(request.extensions().get()).await }
        })
    }

    /// One run.
    pub async fn run(&self, context: Option<&IdempotencyContext>) -> Answered {
        if let Some(context) = context {
            let mut contexts = self.0.contexts.lock().expect("no panic with the lock");
            contexts.push(context.clone());
        }
        let mut run = 0;
        self.0.started.send_modify(|started| {
            *started += 1;
            run = *started;
        });
        let mut gate = self.0.gate.subscribe();
        let opened = gate.wait_for(|gate| gate.all || gate.some.contains(&run));
        drop(opened.await);
        self.0.effects.fetch_add(1, Ordering::SeqCst);
        (self.0.answer)(run)
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({} runs)", self.runs())
    }
}

/// 201 `run n`.
pub fn created(run: usize) -> Response<Full<Bytes>> {
    answer(StatusCode::CREATED, &format!("run {run}"))
}

/// A response with this status and body.
pub fn answer(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body.to_owned()));
    *response.status_mut() = status;
    response
}

/// Sends a request on a task of its own.
pub fn spawn_send<S, B, R>(service: &S, request: Request<B>) -> JoinHandle<Answer>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: fmt::Debug + Send,
    S::Future: Send,
    B: Send + 'static,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: fmt::Debug,
{
    let service = service.clone();
    tokio::spawn(async move { read(service.oneshot(request).await.expect("a response")).await })
}
