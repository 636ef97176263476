//! A handler with steps, and what it did.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tower::{Layer, Service, service_fn};
use tower_idempotency::{
    IdempotencyContext, IdempotencyLayer, MemoryStore, RejectionKind, RequestBody, StepError,
    store::{Store, Takeover},
};

use crate::support::{
    Answer, Body,
    faulty::{FaultyStore, pass},
    handler::{layer, response},
    post, send,
};

/// Why a handler failed.
#[derive(Debug)]
pub enum Failed {
    Step(StepError),
    Declined,
}

impl From<StepError> for Failed {
    fn from(error: StepError) -> Self {
        Self::Step(error)
    }
}

/// How often each effect happened.
#[derive(Clone, Default)]
pub struct Effects(Arc<Mutex<BTreeMap<&'static str, u32>>>);

impl Effects {
    /// It happens, and gives how often it has.
    pub fn happen(&self, name: &'static str) -> u32 {
        let mut effects = self.0.lock().expect("an unpoisoned lock");
        let count = effects.entry(name).or_default();
        *count += 1;
        *count
    }

    pub fn of(&self, name: &'static str) -> u32 {
        let effects = self.0.lock().expect("an unpoisoned lock");
        effects.get(name).copied().unwrap_or_default()
    }
}

/// A service whose handler is this closure: 201 with its text, 502 if it was declined, 500 with the kind if a step failed.
pub fn service<H, F>(
    idempotency: &IdempotencyLayer,
    handler: H,
) -> impl Service<
    Request<Body>,
    Response = Response<tower_idempotency::ResponseBody<Body>>,
    Error = Infallible,
    Future: Send + 'static,
>
+ Clone
+ Send
+ 'static
+ use<H, F>
where
    H: Fn(IdempotencyContext) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<String, Failed>> + Send + 'static,
{
    idempotency.layer(service_fn(move |request: Request<RequestBody<Body>>| {
        let context = request.extensions().get::<IdempotencyContext>().cloned();
        let answer = handler(context.expect("a keyed request"));
        async move {
            Ok::<_, Infallible>(match answer.await {
                Ok(text) => response(StatusCode::CREATED, text),
                Err(Failed::Declined) => response(StatusCode::BAD_GATEWAY, "declined"),
                Err(Failed::Step(error)) => response(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!("{:?}", error.kind()),
                ),
            })
        }
    }))
}

pub fn run_again(store: impl Store) -> IdempotencyLayer {
    layer(store).with_takeover(Takeover::RunAgain)
}

pub fn memory() -> FaultyStore {
    FaultyStore::new(MemoryStore::new())
}

/// Authorizes in a step, fails where `fails` says so, and captures in another step.
pub async fn charge(
    context: IdempotencyContext,
    effects: Effects,
    fails: impl Fn(u32) -> bool,
) -> Result<String, Failed> {
    let authorize = || async { Ok::<_, Failed>(format!("auth {}", effects.happen("authorize"))) };
    let authorized: String = context.step("authorize", authorize).await?;
    if fails(context.attempt()) {
        return Err(Failed::Declined);
    }
    let capture = || async { Ok::<_, Failed>(effects.happen("capture")) };
    let captured: u32 = context.step("capture", capture).await?;
    Ok(format!("{authorized}, capture {captured}"))
}

pub fn charging<F: Fn(u32) -> bool + Copy + Send + Sync + 'static>(
    idempotency: &IdempotencyLayer,
    effects: &Effects,
    fails: F,
) -> impl Service<
    Request<Body>,
    Response = Response<tower_idempotency::ResponseBody<Body>>,
    Error = Infallible,
    Future: Send + 'static,
> + Clone
+ Send
+ use<F> {
    let effects = effects.clone();
    service(idempotency, move |context| {
        charge(context, effects.clone(), fails)
    })
}

/// The retry of a client that asks again while its key is in flight.
pub async fn until_run<S>(service: &S) -> Answer
where
    S: Service<
            Request<Body>,
            Response = Response<tower_idempotency::ResponseBody<Body>>,
            Error = Infallible,
        > + Clone,
{
    loop {
        let answer = send(service, post("k", "{}")).await;
        if answer.rejection() != Some(RejectionKind::InFlight) {
            return answer;
        }
        pass(Duration::from_secs(1)).await;
    }
}
