//! What a run has noted, for the run that takes over.

use std::{convert::Infallible, sync::Arc};

use http::Request;
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{
    IdempotencyContext, RejectionKind, RequestBody, StepError, StepErrorKind, store::Takeover,
};

use crate::{
    app::{Gate, respond},
    backends::Backend,
    sqlite_support::until,
    support::{Body, Runs, post, send},
};

/// The first run is dropped after its first step, the second one fails after its second.
pub async fn a_run_that_takes_over_goes_on_after_the_steps_of_the_one_before(backend: Backend) {
    let (gate, effects) = (Arc::<Gate>::default(), [(); 3].map(|()| Runs::default()));
    let (held, counted) = (Arc::clone(&gate), effects.clone());
    let handler = service_fn(move |request: Request<RequestBody<Body>>| {
        let context = request.extensions().get::<IdempotencyContext>().cloned();
        let (context, gate, effects) =
            (context.expect("a run"), Arc::clone(&held), counted.clone());
        async move {
            let step = async |index: usize| {
                let effect = async || Ok(effects.get(index).expect("an effect").add());
                let name = format!("step {index}");
                context.step::<usize, StepError, _>(&name, effect).await
            };
            let mut done = Vec::new();
            for index in 0..effects.len() {
                match step(index).await {
                    Ok(number) => done.push(number),
                    Err(error) => return Ok(respond(500, format!("{:?}", error.kind()))),
                }
                match (context.attempt(), index) {
                    (1, 0) => {
                        gate.started.notify_one();
                        gate.open.notified().await;
                    }
                    (2, 1) => return Ok(respond(502, "not now")),
                    _ => {}
                }
            }
            Ok::<_, Infallible>(respond(201, format!("{done:?} in {}", context.attempt())))
        }
    });
    let layer = backend.layer().with_takeover(Takeover::RunAgain);
    let service = layer.with_detached(false).layer(handler);
    if backend.is_transaction() {
        let answer = send(&service, post("k", "{}")).await;
        assert_eq!(answer.text(), format!("{:?}", StepErrorKind::Transaction));
        assert_eq!(effects.each_ref().map(Runs::count), [0; 3]);
        return;
    }

    let dropped = tokio::spawn(service.clone().oneshot(post("k", "{}")));
    gate.started.notified().await;
    dropped.abort();
    assert!(dropped.await.expect_err("dropped").is_cancelled());
    until(async || {
        let answer = send(&service, post("k", "{}")).await;
        answer.rejection() != Some(RejectionKind::InFlight)
    })
    .await;
    assert_eq!(effects.each_ref().map(Runs::count), [1, 1, 0]);
    let answer = send(&service, post("k", "{}")).await;
    assert_eq!(answer.text(), "[1, 1, 1] in 3");
    assert!(send(&service, post("k", "{}")).await.is_replay());
    assert_eq!(effects.each_ref().map(Runs::count), [1; 3]);
}
