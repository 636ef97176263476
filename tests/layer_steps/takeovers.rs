//! What a run does that finds the notes of another one, and what it does again.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_idempotency::{
    Fingerprint, IdempotencyContext, IdempotencyKey, IdempotencyLayer, MemoryStore, OnStoreFailure,
    RecordKey, RejectionKind, RequestBody, Scope, StepError, StoreErrorKind, Tag, Verdict,
    store::{Claim, Nonce, Takeover},
};

use crate::{
    app::{Effects, Failed, charging, memory, run_again, service, until_run},
    support::{
        Body, Runs,
        faulty::{Call, Fault},
        handler::{Gate, layer, response},
        post, send,
    },
};

#[tokio::test(start_paused = true)]
async fn a_takeover_skips_what_is_done_and_goes_on_after_it() {
    let (store, effects) = (memory(), Effects::default());
    let service = charging(&run_again(store.clone()), &effects, |attempt| attempt < 3);

    for _ in 0..2 {
        let answer = send(&service, post("k", "{}")).await;
        assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    }
    let third = send(&service, post("k", "{}")).await;

    assert_eq!(third.text(), "auth 1, capture 1");
    assert!(send(&service, post("k", "{}")).await.is_replay());
    assert_eq!((effects.of("authorize"), effects.of("capture")), (1, 1));
    // Nothing is read by a first run, and once by each that took over; each step is noted once.
    assert_eq!((store.count(Call::Notes), store.count(Call::Note)), (2, 2));
}

/// The charge went through, and the receipt did not.
#[tokio::test(start_paused = true)]
async fn a_charge_whose_receipt_fails_is_never_made_twice() {
    for takeover in [Takeover::Refuse, Takeover::RunAgain] {
        let effects = Effects::default();
        let counted = effects.clone();
        let idempotency = layer(MemoryStore::new()).with_takeover(takeover);
        let service = service(&idempotency, move |context| {
            let effects = counted.clone();
            async move {
                let charge = async || Ok::<_, Failed>(effects.happen("charge"));
                let charge: u32 = context.step("charge", charge).await?;
                let mail = async || match effects.happen("mail") {
                    1 => Err(Failed::Declined),
                    _ => Ok(()),
                };
                context.step::<(), Failed, _>("mail", mail).await?;
                Ok(format!("charge {charge} in {}", context.attempt()))
            }
        });
        let failed = send(&service, post("k", "{}")).await;
        assert_eq!(failed.status(), StatusCode::BAD_GATEWAY);
        let retry = send(&service, post("k", "{}")).await;
        if takeover == Takeover::Refuse {
            assert_eq!(retry.rejection(), Some(RejectionKind::OutcomeUnknown));
            assert_eq!(effects.of("mail"), 1);
        } else {
            assert_eq!(retry.text(), "charge 1 in 2");
            assert_eq!(effects.of("mail"), 2);
        }
        assert_eq!(effects.of("charge"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_after_a_step_has_noted_it() {
    let (gate, effects) = (Gate::closed(), Effects::default());
    let idempotency = run_again(MemoryStore::new()).with_detached(false);
    let (passed, counted) = (gate.clone(), effects.clone());
    let service = service(&idempotency, move |context| {
        let (gate, effects) = (passed.clone(), counted.clone());
        async move {
            let first = async || Ok::<_, Failed>(effects.happen("first"));
            context.step::<u32, Failed, _>("first", first).await?;
            gate.pass().await;
            let second = async || Ok::<_, Failed>(effects.happen("second"));
            context.step::<u32, Failed, _>("second", second).await?;
            Ok(format!("attempt {}", context.attempt()))
        }
    });

    let crashed = tokio::spawn(service.clone().oneshot(post("k", "{}")));
    gate.reached().await;
    crashed.abort();
    assert!(crashed.await.expect_err("dropped").is_cancelled());
    gate.open();
    let answer = until_run(&service).await;

    assert_eq!(answer.text(), "attempt 2");
    assert_eq!((effects.of("first"), effects.of("second")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_name_twice_in_a_run_gives_the_first_result() {
    let (store, effects) = (memory(), Effects::default());
    let counted = effects.clone();
    let service = service(&run_again(store.clone()), move |context| {
        let effects = counted.clone();
        async move {
            let effect = async || {
                tokio::task::yield_now().await;
                Ok::<_, Failed>(effects.happen("same"))
            };
            let step = || context.step::<u32, Failed, _>("same", effect);
            let (one, other) = tokio::try_join!(step(), step())?;
            let third = step().await?;
            Ok(format!("{one} {other} {third}"))
        }
    });

    assert_eq!(send(&service, post("k", "{}")).await.text(), "1 1 1");
    assert_eq!((effects.of("same"), store.count(Call::Note)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_failed_effect_is_not_noted() {
    let (store, effects) = (memory(), Effects::default());
    let counted = effects.clone();
    let service = service(&run_again(store.clone()), move |context| {
        let effects = counted.clone();
        async move {
            let effect = async || match effects.happen("declined once") {
                1 => Err(Failed::Declined),
                count => Ok(count),
            };
            let step = || context.step::<u32, Failed, _>("charge", effect);
            let count = match step().await {
                Err(Failed::Declined) => step().await?,
                other => other?,
            };
            Ok(count.to_string())
        }
    });

    assert_eq!(send(&service, post("k", "{}")).await.text(), "2");
    assert_eq!(store.count(Call::Note), 1);
}

#[tokio::test(start_paused = true)]
async fn steps_of_different_names_go_on_at_once_and_are_all_noted() {
    let (store, effects) = (memory(), Effects::default());
    let counted = effects.clone();
    let service = service(&run_again(store.clone()), move |context| {
        let effects = counted.clone();
        async move {
            let barrier = tokio::sync::Barrier::new(3);
            let step = |name: &'static str| {
                let (context, effects, barrier) = (&context, &effects, &barrier);
                async move {
                    let effect = || async move {
                        barrier.wait().await;
                        Ok::<_, Failed>(effects.happen(name))
                    };
                    context.step::<u32, Failed, _>(name, effect).await
                }
            };
            tokio::try_join!(step("a"), step("b"), step("c"))?;
            if context.attempt() == 1 {
                return Err(Failed::Declined);
            }
            Ok("done".to_owned())
        }
    });

    send(&service, post("k", "{}")).await;
    assert_eq!(send(&service, post("k", "{}")).await.text(), "done");
    assert_eq!(["a", "b", "c"].map(|name| effects.of(name)), [1; 3]);
    assert_eq!((store.count(Call::Notes), store.count(Call::Note)), (1, 3));
}

/// Does a step, and then answers this.
fn refusing<R>(
    idempotency: &IdempotencyLayer,
    answer: R,
) -> impl Service<
    Request<Body>,
    Response = Response<tower_idempotency::ResponseBody<Body>>,
    Error = Infallible,
    Future: Send + 'static,
> + Clone
+ Send
+ use<R>
where
    R: Fn(String) -> Response<Body> + Clone + Send + 'static,
{
    let effects = Effects::default();
    idempotency.layer(service_fn(move |request: Request<RequestBody<Body>>| {
        let context = request.extensions().get::<IdempotencyContext>().cloned();
        let (effects, answer) = (effects.clone(), answer.clone());
        async move {
            let effect = async || Ok::<_, StepError>(effects.happen("effect"));
            let step = context.expect("a context").step("effect", effect).await;
            Ok::<_, Infallible>(answer(step.expect("a step").to_string()))
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_step_does_not_free_the_key() {
    let refusals: [fn(String) -> Response<Body>; 2] = [
        |text| response(StatusCode::CONFLICT, text),
        // Its own transaction had lost, which says nothing of the step.
        |text| {
            let mut response = response(StatusCode::CONFLICT, text);
            response.extensions_mut().insert(Verdict::Conflict);
            response
        },
    ];
    for (refusal, told) in refusals
        .into_iter()
        .zip([None, Some(RejectionKind::OutcomePending)])
    {
        let (store, taken) = (memory(), memory());
        let again = refusing(&run_again(store.clone()), refusal);
        let refused = refusing(&layer(taken.clone()), refusal);
        for _ in 0..2 {
            // Not that nothing was committed.
            assert_eq!(send(&again, post("k", "{}")).await.rejection(), told);
        }
        assert_eq!(store.count(Call::Release), 0);
        // What was done is known to each run that takes over.
        assert_eq!(store.count(Call::Note), 1);

        send(&refused, post("k", "{}")).await;
        let retried = send(&refused, post("k", "{}")).await;
        assert_eq!(retried.rejection(), Some(RejectionKind::OutcomeUnknown));
        assert_eq!(taken.count(Call::Note), 1);
    }
}

#[tokio::test]
async fn an_unprotected_run_that_lost_after_a_step_is_not_told_as_undone() {
    let store = memory();
    store.always(Call::Reserve, Fault::Fails(StoreErrorKind::Unavailable));
    let unprotected = layer(store.clone()).with_on_store_failure(OnStoreFailure::RunUnprotected);
    let service = refusing(&unprotected, |text| {
        let mut response = response(StatusCode::CONFLICT, text);
        response.extensions_mut().insert(Verdict::Conflict);
        response
    });

    let lost = send(&service, post("k", "{}")).await;
    assert_eq!(lost.rejection(), Some(RejectionKind::OutcomePending));
    assert_eq!(store.count(Call::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_the_handler_gave_back_has_no_steps() {
    let discarded = |text| {
        let mut response = response(StatusCode::CONFLICT, text);
        response.extensions_mut().insert(Verdict::Discard);
        response
    };
    let service = refusing(&run_again(MemoryStore::new()), discarded);
    assert_eq!(send(&service, post("k", "{}")).await.text(), "1");
    assert_eq!(send(&service, post("k", "{}")).await.text(), "2");
}

#[tokio::test]
async fn a_context_for_tests_remembers_its_steps() {
    let key = RecordKey::from_bytes([1; 32]);
    let fingerprint = Fingerprint::new(Tag::from_u16(1), [0; 32]);
    let claim = Claim::new(key, fingerprint, Nonce::random(), 2, 1);
    let context = IdempotencyContext::new(
        IdempotencyKey::new("k").expect("a key"),
        Scope::new("s").expect("a scope"),
        &claim,
    );
    let runs = Runs::default();
    for _ in 0..2 {
        let step = context
            .step::<usize, StepError, _>("a", async || Ok(runs.add()))
            .await;
        assert_eq!(step.expect("a result"), 1);
    }
}
