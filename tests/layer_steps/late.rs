//! Steps of a task that goes on when its run is over.

use std::{convert::Infallible, future::pending, time::Duration};

use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{
    IdempotencyContext, OnStoreFailure, RequestBody, StepErrorKind, StoreErrorKind,
};

use crate::{
    app::{Effects, Failed, memory, run_again},
    support::{
        Body,
        body::Pipe,
        faulty::{Call, Fault, pass},
        handler::{Gate, response},
        post, send,
    },
};

/// How a run comes to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Answers(u16),
    AnswersUnprotected,
    Panics,
    ReachesItsLimit,
    IsDropped,
}

const ENDS: [End; 7] = [
    End::Answers(201),
    End::Answers(404),
    End::Answers(502),
    End::AnswersUnprotected,
    End::Panics,
    End::ReachesItsLimit,
    End::IsDropped,
];

/// What the handler leaves to a task, of a run that is over when this ends. It waits for the gate before its end.
async fn context_of_run(end: End, gate: Gate) -> (IdempotencyContext, impl Future<Output = ()>) {
    let (store, (left, mut contexts)) = (memory(), mpsc::unbounded_channel());
    if end == End::AnswersUnprotected {
        store.always(Call::Reserve, Fault::Fails(StoreErrorKind::Unavailable));
    }
    let idempotency = run_again(store)
        .with_run_limit(Duration::from_secs(1))
        .with_detached(end != End::IsDropped)
        .with_on_store_failure(OnStoreFailure::RunUnprotected);
    let service = idempotency.layer(service_fn(move |request: Request<RequestBody<Body>>| {
        let context = request.extensions().get::<IdempotencyContext>().cloned();
        left.send(context.expect("a run")).expect("a receiver");
        let gate = gate.clone();
        async move {
            gate.pass().await;
            match end {
                End::Answers(status) => {
                    let status = StatusCode::from_u16(status).expect("a status");
                    Ok::<_, Infallible>(response(status, ""))
                }
                End::AnswersUnprotected => Ok(response(StatusCode::CREATED, "")),
                End::Panics => panic!("on purpose"),
                End::ReachesItsLimit | End::IsDropped => pending().await,
            }
        }
    }));
    let asked = tokio::spawn(service.oneshot(post("k", "{}")));
    let context = contexts.recv().await.expect("a run");
    let ended = async move {
        if end == End::IsDropped {
            asked.abort();
            assert!(asked.await.expect_err("dropped").is_cancelled());
        } else {
            asked.await.expect("no panic").expect("an answer");
        }
    };
    (context, ended)
}

/// The step of a task, whose kind of error is told.
async fn step(
    context: IdempotencyContext,
    effect: impl AsyncFnOnce() -> u32,
) -> Result<u32, StepErrorKind> {
    let effect = async || Ok::<_, Failed>(effect().await);
    match context.step("late", effect).await {
        Ok(value) => Ok(value),
        Err(Failed::Step(error)) => Err(error.kind()),
        Err(Failed::Declined) => panic!("not declined"),
    }
}

#[tokio::test(start_paused = true)]
async fn no_step_begins_when_the_run_is_over() {
    for end in ENDS {
        let (gate, effects) = (Gate::closed(), Effects::default());
        let (context, ended) = context_of_run(end, gate.clone()).await;
        gate.open();
        ended.await;

        let late = step(context, async || effects.happen("late")).await;

        assert_eq!(late, Err(StepErrorKind::RunEnded), "{end:?}");
        assert_eq!(effects.of("late"), 0, "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_waits_for_another_of_its_name_does_not_begin_when_the_run_is_over() {
    for end in ENDS {
        let (gate, held, effects) = (Gate::closed(), Gate::closed(), Effects::default());
        let (context, ended) = context_of_run(end, gate.clone()).await;
        let (first, passed) = (context.clone(), held.clone());
        let first = tokio::spawn(async move {
            let declined = || async {
                passed.pass().await;
                Err::<u32, _>(Failed::Declined)
            };
            first.step("late", declined).await.expect_err("declined");
        });
        held.reached().await;
        let counted = effects.clone();
        let second = tokio::spawn(step(context, async move || counted.happen("late")));
        tokio::task::yield_now().await;
        gate.open();
        ended.await;
        held.open();
        first.await.expect("no panic");

        let late = second.await.expect("no panic");

        assert_eq!(late, Err(StepErrorKind::RunEnded), "{end:?}");
        assert_eq!(effects.of("late"), 0, "{end:?}");
    }
}

/// What is done is known to a task that goes on.
#[tokio::test(start_paused = true)]
async fn a_step_that_is_done_gives_its_result_when_the_run_is_over() {
    for end in ENDS {
        let (gate, effects) = (Gate::closed(), Effects::default());
        let (context, ended) = context_of_run(end, gate.clone()).await;
        let done = step(context.clone(), async || effects.happen("late")).await;
        gate.open();
        ended.await;

        let late = step(context, async || effects.happen("late")).await;

        assert_eq!((done, late), (Ok(1), Ok(1)), "{end:?}");
    }
}

/// It is refused at the moment when the key is given back, not some time after it.
#[tokio::test(start_paused = true)]
async fn a_step_that_begins_while_a_refusal_is_settled_can_not_have_an_effect_under_a_free_key() {
    let (store, effects) = (memory(), Effects::default());
    store.then(Call::Release, Fault::Hangs);
    let (left, mut contexts) = mpsc::unbounded_channel();
    let service =
        run_again(store.clone()).layer(service_fn(move |request: Request<RequestBody<Body>>| {
            let context = request.extensions().get::<IdempotencyContext>().cloned();
            left.send(context.expect("a run")).expect("a receiver");
            async { Ok::<_, Infallible>(response(StatusCode::NOT_FOUND, "")) }
        }));
    let asked = tokio::spawn(service.clone().oneshot(post("k", "{}")));
    let context = contexts.recv().await.expect("a run");
    store.reached(Call::Release, 1).await;

    let late = step(context, async || effects.happen("late")).await;
    store.let_go();
    asked.await.expect("no panic").expect("an answer");

    assert_eq!(late, Err(StepErrorKind::RunEnded));
    assert_eq!(effects.of("late"), 0);
    let retry = send(&service, post("k", "{}")).await;
    assert_eq!(
        (retry.status(), retry.rejection()),
        (StatusCode::NOT_FOUND, None)
    );
}

/// A response is part of its run for as long as the layer collects it, and what goes on as a stream is not.
#[tokio::test(start_paused = true)]
async fn a_task_that_writes_the_body_does_steps_while_it_is_collected() {
    for (kind, expected) in [
        ("text/plain", Ok(1)),
        ("text/event-stream", Err(StepErrorKind::RunEnded)),
    ] {
        let (store, effects) = (memory(), Effects::default());
        let (ended, mut steps) = mpsc::unbounded_channel();
        let counted = effects.clone();
        let handler = service_fn(move |request: Request<RequestBody<Body>>| {
            let context = request.extensions().get::<IdempotencyContext>().cloned();
            let (frames, body) = Pipe::new();
            let (ended, counted) = (ended.clone(), counted.clone());
            tokio::spawn(async move {
                frames.send("first ").expect("a reader");
                // The handler has answered by then.
                pass(Duration::from_secs(1)).await;
                let late = step(context.expect("a run"), async || counted.happen("late")).await;
                ended.send(late).expect("a test");
                frames.send("last").expect("a reader");
            });
            async move {
                let response = Response::builder().header(CONTENT_TYPE, kind).body(body);
                Ok::<_, Infallible>(response.expect("a response"))
            }
        });
        let service = run_again(store).layer(handler);

        let answer = send(&service, post("k", "{}")).await;

        assert_eq!(answer.text(), "first last", "{kind}");
        assert_eq!(steps.recv().await, Some(expected), "{kind}");
        assert_eq!(effects.of("late"), u32::from(expected.is_ok()), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_goes_on_beside_its_handler_keeps_the_key_from_being_given_back() {
    let (store, gate) = (memory(), Gate::closed());
    let held = gate.clone();
    let service =
        run_again(store.clone()).layer(service_fn(move |request: Request<RequestBody<Body>>| {
            let context = request.extensions().get::<IdempotencyContext>().cloned();
            let (context, gate) = (context.expect("a run"), held.clone());
            async move {
                let begun = Gate::closed();
                let passed = begun.clone();
                tokio::spawn(async move {
                    let effect = async || {
                        passed.pass().await;
                        gate.pass().await;
                        1
                    };
                    step(context, effect).await
                });
                begun.reached().await;
                begun.open();
                Ok::<_, Infallible>(response(StatusCode::NOT_FOUND, "nothing happened, it says"))
            }
        }));

    send(&service, post("k", "{}")).await;
    let counts = [Call::Release, Call::Abandon].map(|call| store.count(call));
    assert_eq!(counts, [0, 1]);
    gate.open();
}
