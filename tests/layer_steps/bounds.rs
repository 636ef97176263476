//! What can't be noted, and what is told of it.

use std::{collections::BTreeMap, error::Error as _, time::Duration};

use tower_idempotency::{
    Fingerprint, MemoryStore, RecordKey, SavedResponse, StepError, StepErrorKind, StoreErrorKind,
    Tag,
    store::{Nonce, Note, Reservation, Store, StoreKind, Terms},
};

use crate::{
    app::{Effects, Failed, charging, memory, run_again, service},
    support::{
        faulty::{Call, FaultyStore, pass},
        handler::layer,
        post, send,
        spy::Spy,
    },
};

#[tokio::test(start_paused = true)]
async fn a_store_without_steps_says_why_before_the_effect() {
    let transaction = FaultyStore::of_kind(MemoryStore::new(), StoreKind::Transaction);
    let without = Spy::new();
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
async fn what_earlier_runs_have_noted_counts_for_the_bound() {
    let store = memory();
    let service = service(&run_again(store.clone()), move |context| async move {
        for number in 0..3 {
            let name = format!("{} of run {}", number, context.attempt());
            let effect = async || Ok::<_, Failed>("x".repeat(Note::MAX_TOTAL / 5));
            let _text: String = context.step(&name, effect).await?;
        }
        Err(Failed::Declined)
    });

    for _ in 0..2 {
        send(&service, post("k", "{}")).await;
    }
    assert_eq!(store.count(Call::Note), 4);
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
                Ok(Reservation::Acquired(claim)) => claim,
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

    let tombstone = SavedResponse::tombstone();
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
