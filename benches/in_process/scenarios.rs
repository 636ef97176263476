//! The rows of the table: each is a service and the requests that it gets.

use std::{
    convert::Infallible,
    fmt::Debug,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, Response};
use tower::{Service, ServiceExt};

use crate::service::{Body, DAY, RESPONSE, Runs, floor, guarded, handler, json, read, request};

/// One row.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) goal: Option<Goal>,
    /// Handler runs and response bytes that each request brings about.
    expected: (usize, usize),
    runs: Runs,
    load: Box<dyn Load>,
}

/// The row that it is compared with, and how many times as much it may cost, if that was set.
pub(crate) type Goal = (&'static str, Option<f64>);

impl Scenario {
    fn new(name: &'static str, runs: &Runs, load: impl Load + 'static) -> Self {
        Self {
            name,
            goal: None,
            expected: (1, RESPONSE),
            runs: runs.clone(),
            load: Box::new(load),
        }
    }

    fn reach(mut self, against: &'static str, times: f64) -> Self {
        self.goal = Some((against, Some(times)));
        self
    }

    #[cfg(feature = "client")]
    fn against(mut self, other: &'static str) -> Self {
        self.goal = Some((other, None));
        self
    }

    fn expect(mut self, runs: usize, bytes: usize) -> Self {
        self.expected = (runs, bytes);
        self
    }

    /// Sends a few requests and asserts what they did.
    pub(crate) async fn check(&mut self) {
        const REQUESTS: usize = 10;
        self.prepare().await;
        let before = self.runs.count();
        let bytes = self.run(REQUESTS).await;
        let did = (self.runs.count() - before, bytes);
        let (runs, size) = self.expected;
        assert_eq!(did, (runs * REQUESTS, size * REQUESTS), "{}", self.name);
    }

    /// To be called before each [`run`](Self::run), and not to be measured.
    pub(crate) async fn prepare(&mut self) {
        self.load.prepare().await;
    }

    /// Sends requests, and tells how many bytes came back.
    pub(crate) async fn run(&mut self, requests: usize) -> usize {
        self.load.run(requests).await
    }
}

/// What the layer costs, path by path.
pub(crate) fn paths() -> Vec<Scenario> {
    let (small, large) = (200, 64 << 10);
    let runs = &Runs::default();
    let get = || request(Method::GET, fresh(), &Bytes::new());
    vec![
        Scenario::new("building the request", runs, Building(post(fresh, small))).expect(0, 0),
        Scenario::new("bare", runs, Calls::new(handler(runs), post(fresh, small))),
        Scenario::new("F", runs, Calls::new(floor(runs), post(fresh, small))),
        Scenario::new(
            "bare, no key",
            runs,
            Calls::new(handler(runs), post(none, small)),
        ),
        Scenario::new(
            "no key",
            runs,
            Calls::new(guarded(runs, true, DAY), post(none, small)),
        )
        .reach("bare, no key", 1.05),
        Scenario::new("bare GET", runs, Calls::new(handler(runs), get)),
        Scenario::new(
            "safe method",
            runs,
            Calls::new(guarded(runs, true, DAY), get),
        )
        .reach("bare GET", 1.05),
        Scenario::new(
            "replay",
            runs,
            Calls::new(guarded(runs, true, DAY), post(same, small)),
        )
        .expect(0, RESPONSE)
        .reach("F", 1.4),
        Scenario::new(
            "first, inline",
            runs,
            Calls::new(guarded(runs, false, DAY), post(fresh, small)),
        )
        .reach("F", 1.75),
        Scenario::new(
            "first, on a task",
            runs,
            Calls::new(guarded(runs, true, DAY), post(fresh, small)),
        )
        .reach("F", 2.2),
        Scenario::new(
            "F, 64 KiB",
            runs,
            Calls::new(floor(runs), post(fresh, large)),
        ),
        Scenario::new(
            "replay, 64 KiB",
            runs,
            Calls::new(guarded(runs, true, DAY), post(same, large)),
        )
        .expect(0, RESPONSE)
        .reach("F, 64 KiB", 1.1),
        Scenario::new(
            "first, 64 KiB",
            runs,
            Calls::new(guarded(runs, false, DAY), post(fresh, large)),
        )
        .reach("F, 64 KiB", 1.15),
    ]
    .into_iter()
    .chain(client(runs))
    .collect()
}

/// The client's layer in front of the bare service.
#[cfg(feature = "client")]
fn client(runs: &Runs) -> Vec<Scenario> {
    let service = || crate::service::client(runs);
    let get = || request(Method::GET, fresh(), &Bytes::new());
    vec![
        Scenario::new("client", runs, Calls::new(service(), post(none, 200)))
            .against("bare, no key"),
        Scenario::new("client, GET", runs, Calls::new(service(), get)).against("bare GET"),
    ]
}

#[cfg(not(feature = "client"))]
fn client(_: &Runs) -> Vec<Scenario> {
    vec![]
}

/// The same calls with a thousand and with a million keys in the store.
pub(crate) async fn live_keys() -> Vec<Scenario> {
    const FEW: u64 = 1_000;
    const MANY: u64 = 1_000_000;
    let runs = &Runs::default();
    let (few, many) = (filled(runs, FEW).await, filled(runs, MANY).await);
    // A first request adds a key, so the store with few is made anew for each slice.
    let first_of_few = Renewed {
        make: {
            let runs = runs.clone();
            async move || filled(&runs, FEW).await
        },
        calls: Calls::new(few.clone(), post(fresh, 200)),
    };
    vec![
        Scenario::new(
            "replay, 1 000 keys",
            runs,
            Calls::new(few, post(any::<FEW>, 200)),
        )
        .expect(0, RESPONSE),
        Scenario::new(
            "replay, 1 000 000 keys",
            runs,
            Calls::new(many.clone(), post(any::<MANY>, 200)),
        )
        .expect(0, RESPONSE)
        .reach("replay, 1 000 keys", 1.3),
        Scenario::new("first, 1 000 keys", runs, first_of_few),
        Scenario::new(
            "first, 1 000 000 keys",
            runs,
            Calls::new(many, post(fresh, 200)),
        )
        .reach("first, 1 000 keys", 1.3),
    ]
}

/// The service with the keys 0, 1, 2 and so on in its store, this many.
async fn filled(runs: &Runs, keys: u64) -> impl Answers + Clone + use<> {
    let mut service = guarded(runs, false, DAY);
    let body = json(200);
    for key in 0..keys {
        service
            .answer(request(Method::POST, Some(key), &body))
            .await;
    }
    service
}

fn post(key: fn() -> Option<u64>, size: usize) -> impl Fn() -> Request<Body> + Send {
    let body = json(size);
    move || request(Method::POST, key(), &body)
}

fn none() -> Option<u64> {
    None
}

fn same() -> Option<u64> {
    Some(0)
}

/// A key that no request had before.
pub(crate) fn fresh() -> Option<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    Some(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// One of the first `KEYS` keys, in an order that no cache foresees.
fn any<const KEYS: u64>() -> Option<u64> {
    static STATE: AtomicU64 = AtomicU64::new(1);
    let step = |state: u64| {
        state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1)
    };
    let state = STATE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| {
        Some(step(state))
    });
    Some((state.unwrap_or_default() >> 33) % KEYS)
}

/// Something to be measured.
#[async_trait(?Send)]
trait Load {
    async fn prepare(&mut self);
    async fn run(&mut self, requests: usize) -> usize;
}

struct Building<Q>(Q);

#[async_trait(?Send)]
impl<Q: Fn() -> Request<Body>> Load for Building<Q> {
    async fn prepare(&mut self) {}

    async fn run(&mut self, requests: usize) -> usize {
        for _ in 0..requests {
            drop(black_box((self.0)()));
        }
        0
    }
}

/// Requests to a service, one after the other.
struct Calls<S, Q> {
    service: S,
    next: Q,
}

impl<S: Answers, Q: Fn() -> Request<Body>> Calls<S, Q> {
    fn new(service: S, next: Q) -> Self {
        Self { service, next }
    }
}

#[async_trait(?Send)]
impl<S: Answers, Q: Fn() -> Request<Body>> Load for Calls<S, Q> {
    /// One request, so that a replay has something to replay.
    async fn prepare(&mut self) {
        self.run(1).await;
    }

    async fn run(&mut self, requests: usize) -> usize {
        let mut bytes = 0;
        for _ in 0..requests {
            bytes += self.service.answer((self.next)()).await;
        }
        bytes
    }
}

/// Requests to a service that is made anew each time.
struct Renewed<M, S, Q> {
    make: M,
    calls: Calls<S, Q>,
}

#[async_trait(?Send)]
impl<M: AsyncFn() -> S, S: Answers, Q: Fn() -> Request<Body>> Load for Renewed<M, S, Q> {
    async fn prepare(&mut self) {
        self.calls.service = (self.make)().await;
    }

    async fn run(&mut self, requests: usize) -> usize {
        self.calls.run(requests).await
    }
}

/// A service whose answers can be counted.
pub(crate) trait Answers {
    /// The size of the answer's body.
    async fn answer(&mut self, request: Request<Body>) -> usize;
}

impl<S, B> Answers for S
where
    S: Service<Request<Body>, Response = Response<B>, Error: Debug>,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Unpin,
{
    async fn answer(&mut self, request: Request<Body>) -> usize {
        let service = self.ready().await.expect("a ready service");
        let response = service.call(request).await.expect("an answer");
        read(response.into_body()).await
    }
}
