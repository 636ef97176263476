//! A store that fails, a claim that is lost, a note that can't be read.

use std::time::Duration;

use http::StatusCode;
use tokio::sync::mpsc;
use tower_idempotency::{
    Drain, MemoryStore, OnStoreFailure, RejectionKind, StepErrorKind, StoreErrorKind,
};

use crate::{
    app::{Effects, Failed, charging, memory, run_again, service, until_run},
    support::{
        faulty::{Call, Fault, FaultyStore, pass},
        handler::{Gate, layer},
        post,
        probe::spawn_send,
        send,
    },
};

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
async fn a_claim_that_is_lost_before_the_notes_are_read_is_told_as_lost() {
    let (store, effects) = (memory(), Effects::default());
    let service = charging(&run_again(store.clone()), &effects, |attempt| attempt < 3);
    send(&service, post("k", "{}")).await;
    store.then(Call::Notes, Fault::Fails(StoreErrorKind::LostClaim));

    let lost = send(&service, post("k", "{}")).await;
    assert_eq!((lost.text(), effects.of("authorize")), ("LostClaim", 1));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_given_no_more_notes_than_the_bound() {
    let store = memory();
    store.always(Call::Note, Fault::Hangs);
    let bounded = run_again(store.clone()).with_late_call_bound(1);
    let service = service(&bounded, |context| async move {
        let mut sum = 0;
        for name in ["a", "b", "c"] {
            let effect = async || Ok::<_, Failed>(1);
            sum += context.step::<u32, Failed, _>(name, effect).await?;
        }
        Ok(sum.to_string())
    });

    assert_eq!(send(&service, post("k", "{}")).await.text(), "3");
    assert_eq!(store.count(Call::Note), 1);
    store.let_go();
    store.all_calls_ended().await;
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
async fn nobody_takes_over_while_a_note_is_under_way() {
    for detached in [true, false] {
        let (store, effects) = (memory(), Effects::default());
        store.then(Call::Note, Fault::Hangs);
        let idempotency = run_again(store.clone())
            .with_run_limit(Duration::from_secs(1))
            .with_detached(detached);
        let service = charging(&idempotency, &effects, |_| false);
        let first = spawn_send(&service, post("k", "{}"));
        store.reached(Call::Note, 1).await;
        match detached {
            // Cut off by its limit, or because its caller went away.
            true => pass(Duration::from_secs(2)).await,
            false => {
                first.abort();
                pass(Duration::from_secs(1)).await;
            }
        }

        let early = send(&service, post("k", "{}")).await;
        assert_eq!(early.rejection(), Some(RejectionKind::InFlight));
        store.let_go();
        let answer = until_run(&service).await;

        assert_eq!(answer.text(), "auth 1, capture 1", "{detached}");
        assert_eq!((effects.of("authorize"), effects.of("capture")), (1, 1));
        store.all_calls_ended().await;
    }
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
