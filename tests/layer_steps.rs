//! Steps: a run that takes over goes on after what the one before it has noted.
#![cfg(feature = "memory")]

mod support;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    error::Error as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use support::{
    Answer, Body, Runs,
    faulty::{Call, Fault, FaultyStore, pass},
    handler::{Gate, layer, response},
    post, send,
};
use tokio::sync::mpsc;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_idempotency::{
    Drain, Fingerprint, IdempotencyContext, IdempotencyKey, IdempotencyLayer, MemoryStore,
    OnStoreFailure, RecordKey, RejectionKind, RequestBody, Scope, StepError, StepErrorKind,
    StoreErrorKind, Tag,
    store::{Claim, Nonce, Note, Store, StoreKind, Takeover, Terms},
};

/// Why a handler failed.
#[derive(Debug)]
enum Failed {
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
struct Effects(Arc<Mutex<BTreeMap<&'static str, u32>>>);

impl Effects {
    /// It happens, and gives how often it has.
    fn happen(&self, name: &'static str) -> u32 {
        let mut effects = self.0.lock().expect("an unpoisoned lock");
        let count = effects.entry(name).or_default();
        *count += 1;
        *count
    }

    fn of(&self, name: &'static str) -> u32 {
        let effects = self.0.lock().expect("an unpoisoned lock");
        effects.get(name).copied().unwrap_or_default()
    }
}

/// A service whose handler is this closure: 201 with its text, 502 if it was declined, 500 with the kind if a step failed.
fn service<H, F>(
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

fn run_again(store: impl Store) -> IdempotencyLayer {
    layer(store).with_takeover(Takeover::RunAgain)
}

fn memory() -> FaultyStore {
    FaultyStore::new(MemoryStore::new())
}

/// Authorizes in a step, fails where `fails` says so, and captures in another step.
async fn charge(
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

fn charging<F: Fn(u32) -> bool + Copy + Send + Sync + 'static>(
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

/// The retry of a client that asks again while its key is in flight.
async fn until_run<S>(service: &S) -> Answer
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

#[tokio::test(start_paused = true)]
async fn a_run_whose_claim_was_lost_stops_at_its_next_step() {
    let (others, effects) = (MemoryStore::new(), Effects::default());
    let records = FaultyStore::new(others.clone());
    records.always(Call::Renew, Fault::Fails(StoreErrorKind::Unavailable));
    let gate = Gate::closed();
    let (passed, counted) = (gate.clone(), effects.clone());
    let (told, mut kinds) = mpsc::unbounded_channel();
    let slow = service(&run_again(records.clone()), move |context| {
        let (gate, effects, told) = (passed.clone(), counted.clone(), told.clone());
        async move {
            for name in ["held", "next"] {
                let effect = async || {
                    gate.pass().await;
                    Ok::<_, Failed>(effects.happen(name))
                };
                match context.step::<u32, Failed, _>(name, effect).await {
                    Ok(_) => {}
                    Err(Failed::Step(error)) => {
                        let sent = told.send((error.kind(), context.claim_lost()));
                        sent.expect("a receiver");
                    }
                    Err(declined) => return Err(declined),
                }
            }
            Ok("late".to_owned())
        }
    });
    let fast = charging(&run_again(others), &Effects::default(), |_| false);

    let late = tokio::spawn(async move { send(&slow, post("k", "{}")).await });
    gate.reached().await;
    pass(Duration::from_secs(31)).await;
    let second = send(&fast, post("k", "{}")).await;
    gate.open();

    assert_eq!(second.text(), "auth 1, capture 1");
    let late = late.await.expect("no panic");
    assert!(late.is_replay());
    assert_eq!(late.text(), second.text());
    // The effect that was under way happened, and told that it wasn't noted; the next one didn't happen.
    assert_eq!((effects.of("held"), effects.of("next")), (1, 0));
    for _ in 0..2 {
        assert_eq!(kinds.recv().await, Some((StepErrorKind::LostClaim, true)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_note_of_another_type_stops_the_run_before_the_effect() {
    let (store, effects) = (MemoryStore::new(), Effects::default());
    let idempotency = run_again(store);
    let before = charging(&idempotency, &effects, |_| true);
    let counted = effects.clone();
    let after = service(&idempotency, move |context| {
        let effects = counted.clone();
        async move {
            let effect = async || Ok::<_, Failed>(effects.happen("authorize"));
            let number: u32 = context.step("authorize", effect).await?;
            Ok(number.to_string())
        }
    });

    send(&before, post("k", "{}")).await;
    let answer = send(&after, post("k", "{}")).await;

    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer.text(), "OtherType");
    assert_eq!(effects.of("authorize"), 1);
    // The first form still goes on: nothing was lost by the attempt.
    let again = charging(&idempotency, &effects, |_| false);
    assert_eq!(
        send(&again, post("k", "{}")).await.text(),
        "auth 1, capture 1"
    );
}

#[tokio::test(start_paused = true)]
async fn what_happened_and_cant_be_noted_is_a_result_all_the_same() {
    let faults = [
        Fault::Fails(StoreErrorKind::Unavailable),
        Fault::Fails(StoreErrorKind::Full),
        Fault::Fails(StoreErrorKind::Other),
        Fault::Panics,
        Fault::Hangs,
        Fault::LosesAnswer(StoreErrorKind::Unavailable),
    ];
    for fault in faults {
        let (store, effects) = (memory(), Effects::default());
        store.always(Call::Note, fault);
        let service = charging(&run_again(store.clone()), &effects, |_| false);

        let answer = send(&service, post("k", "{}")).await;

        assert_eq!(answer.text(), "auth 1, capture 1", "{fault:?}");
        assert!(send(&service, post("k", "{}")).await.is_replay());
        assert_eq!((effects.of("authorize"), effects.of("capture")), (1, 1));
        store.let_go();
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_where_an_earlier_runs_notes_cant_be_read() {
    for fault in [
        Fault::Fails(StoreErrorKind::Unavailable),
        Fault::Hangs,
        Fault::Panics,
    ] {
        let (store, effects) = (memory(), Effects::default());
        let service = charging(&run_again(store.clone()), &effects, |attempt| attempt < 3);
        send(&service, post("k", "{}")).await;
        store.then(Call::Notes, fault);

        let refused = send(&service, post("k", "{}")).await;
        let answer = send(&service, post("k", "{}")).await;

        assert_eq!(refused.text(), "StoreUnavailable", "{fault:?}");
        assert_eq!(answer.text(), "auth 1, capture 1");
        assert_eq!((effects.of("authorize"), effects.of("capture")), (1, 1));
        store.let_go();
        store.all_calls_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_note_that_is_under_way_when_the_run_reaches_its_limit_is_written() {
    let (store, effects, drain) = (memory(), Effects::default(), Drain::new());
    store.then(Call::Note, Fault::Hangs);
    let idempotency = run_again(store.clone())
        .with_run_limit(Duration::from_secs(1))
        .with_drain(drain.clone());
    let service = charging(&idempotency, &effects, |_| false);

    let cut_off = send(&service, post("k", "{}")).await;
    assert_eq!(cut_off.rejection(), Some(RejectionKind::RunLimit));
    assert_eq!(drain.wait(Duration::from_secs(60)).await, 0);
    // Abandoned by now, and not taken over yet.
    store.let_go();
    store.all_calls_ended().await;
    let answer = send(&service, post("k", "{}")).await;

    assert_eq!(answer.text(), "auth 1, capture 1");
    assert_eq!(effects.of("authorize"), 1);
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

#[tokio::test(start_paused = true)]
async fn a_store_without_steps_says_why_before_the_effect() {
    let transaction = FaultyStore::of_kind(MemoryStore::new(), StoreKind::Transaction);
    let without = support::spy::Spy::new();
    let effects = Effects::default();

    let answer = send(
        &charging(&layer(transaction), &effects, |_| false),
        post("k", "{}"),
    )
    .await;
    assert_eq!(answer.text(), "Transaction");
    let answer = send(
        &charging(&layer(without), &effects, |_| false),
        post("k", "{}"),
    )
    .await;
    assert_eq!(answer.text(), "Unsupported");

    assert_eq!(effects.of("authorize"), 0);
    let error = StepError::from(StepErrorKind::Transaction).to_string();
    assert!(
        error.contains("rolled back together") && error.contains("lease store"),
        "{error}"
    );
    assert!(
        StepError::from(StepErrorKind::Unsupported)
            .source()
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_too_long_is_told_before_the_effect() {
    let effects = Effects::default();
    let counted = effects.clone();
    let service = service(&run_again(MemoryStore::new()), move |context| {
        let effects = counted.clone();
        async move {
            let effect = async || Ok::<_, Failed>(effects.happen("effect"));
            let longest = "n".repeat(Note::MAX_NAME);
            context.step::<u32, Failed, _>(&longest, effect).await?;
            context
                .step::<u32, Failed, _>(&format!("{longest}n"), effect)
                .await?;
            Ok(String::new())
        }
    });

    assert_eq!(send(&service, post("k", "{}")).await.text(), "NameTooLong");
    assert_eq!(effects.of("effect"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_or_cant_be_json_is_a_result_and_not_noted() {
    let store = memory();
    let service = service(&run_again(store.clone()), move |context| async move {
        let fits = Note::MAX_VALUE - 2;
        for (name, length) in [("fits", fits), ("too large", fits + 1)] {
            let effect = async || Ok::<_, Failed>("x".repeat(length));
            let text: String = context.step(name, effect).await?;
            assert_eq!(text.len(), length);
        }
        // JSON's objects have text for names.
        let no_json = async || Ok::<_, Failed>(BTreeMap::from([((1, 2), 3)]));
        let map: BTreeMap<(u8, u8), u8> = context.step("no JSON", no_json).await?;
        assert_eq!(map.len(), 1);
        let again = context.step("no JSON", no_json).await;
        let Err(Failed::Step(error)) = again else {
            panic!("a second run of the effect: {again:?}");
        };
        assert_eq!(error.kind(), StepErrorKind::OtherType);
        Ok("done".to_owned())
    });

    assert_eq!(send(&service, post("k", "{}")).await.text(), "done");
    assert_eq!(store.count(Call::Note), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_notes_no_more_than_the_bound_in_all() {
    let store = memory();
    let service = service(&run_again(store.clone()), move |context| async move {
        for number in 0..8 {
            let effect = async || Ok::<_, Failed>("x".repeat(Note::MAX_TOTAL / 5));
            let _text: String = context.step(&number.to_string(), effect).await?;
        }
        Ok("done".to_owned())
    });

    assert_eq!(send(&service, post("k", "{}")).await.text(), "done");
    assert_eq!(store.count(Call::Note), 4);
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_run_notes_nothing_and_remembers_its_steps() {
    let (store, effects) = (memory(), Effects::default());
    store.always(Call::Reserve, Fault::Fails(StoreErrorKind::Unavailable));
    let idempotency = layer(store.clone()).with_on_store_failure(OnStoreFailure::RunUnprotected);
    let counted = effects.clone();
    let service = service(&idempotency, move |context| {
        let effects = counted.clone();
        async move {
            let effect = async || Ok::<_, Failed>(effects.happen("effect"));
            let step = || context.step::<u32, Failed, _>("effect", effect);
            Ok(format!("{} {}", step().await?, step().await?))
        }
    });

    assert_eq!(send(&service, post("k", "{}")).await.text(), "1 1");
    assert_eq!((store.count(Call::Notes), store.count(Call::Note)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_given_back_has_no_steps() {
    let effects = Effects::default();
    let counted = effects.clone();
    let service = run_again(MemoryStore::new()).layer(service_fn(
        move |request: Request<RequestBody<Body>>| {
            let context = request.extensions().get::<IdempotencyContext>().cloned();
            let effects = counted.clone();
            async move {
                let effect = async || Ok::<_, StepError>(effects.happen("effect"));
                let step = context.expect("a context").step("effect", effect).await;
                let text = step.expect("a step").to_string();
                Ok::<_, Infallible>(response(StatusCode::CONFLICT, text))
            }
        },
    ));

    assert_eq!(send(&service, post("k", "{}")).await.text(), "1");
    assert_eq!(send(&service, post("k", "{}")).await.text(), "2");
}

#[tokio::test(start_paused = true)]
async fn notes_count_for_the_memory_stores_bytes_until_their_run_is_over() {
    let store = MemoryStore::new().with_max_bytes(3_000);
    let fingerprint = Fingerprint::new(Tag::from_u16(1), [0; 32]);
    let claim = |number: u8| {
        let store = store.clone();
        async move {
            let terms = Terms::new(
                Nonce::random(),
                Duration::from_secs(9),
                Duration::from_secs(9),
            );
            let key = RecordKey::from_bytes([number; 32]);
            match store.reserve(&key, &fingerprint, &terms).await {
                Ok(tower_idempotency::store::Reservation::Acquired(claim)) => claim,
                other => panic!("a claim: {other:?}"),
            }
        }
    };
    let steps = store.steps().expect("steps");
    let note = Note::new("name", vec![0; 1_000]);
    let (first, second, third) = (claim(1).await, claim(2).await, claim(3).await);
    steps.note(&first, &note).await.expect("room");
    steps.note(&first, &note).await.expect("nothing more");
    let one = store.response_bytes();
    steps.note(&second, &note).await.expect("room");
    assert_eq!(store.response_bytes(), 2 * one);
    let full = steps.note(&third, &note).await.expect_err("no room");
    assert_eq!(full.kind(), StoreErrorKind::Full);

    let tombstone = tower_idempotency::SavedResponse::tombstone();
    store
        .complete(&first, &tombstone, Duration::from_secs(9))
        .await
        .expect("a completion");
    assert_eq!(store.response_bytes(), one);
    steps.note(&third, &note).await.expect("room again");
    store.release(&second).await.expect("a release");
    assert_eq!(store.response_bytes(), one);
    pass(Duration::from_secs(19)).await;
    assert_eq!(store.purge_expired(9).await.expect("a purge"), 2);
    assert_eq!(store.response_bytes(), 0);
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
