//! The background task that purges: when it does, how much, what stops it and what doesn't.
#![cfg(feature = "memory")]
mod support;

use std::{
    collections::{BTreeSet, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use support::faulty::{Call, Fault, FaultyStore, pass, yield_times};
use tokio::{task::JoinSet, time::Instant};
use tower_idempotency::{
    Fingerprint, MemoryStore, Purger, RecordKey, SavedResponse, StoreErrorKind, Tag,
    store::{Nonce, Reservation, Store, Terms},
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A store with so many expired records, and three that have not expired.
async fn with_expired(count: usize) -> (MemoryStore, FaultyStore) {
    let records = MemoryStore::new();
    for number in 0..count + 3 {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        let key = RecordKey::from_bytes(key);
        let fingerprint = Fingerprint::new(Tag::from_u16(1), [1; 32]);
        let terms = Terms::new(Nonce::random(), SECOND, 1_000 * MINUTE);
        let claim = match records.reserve(&key, &fingerprint, &terms).await {
            Ok(Reservation::Acquired(claim)) => Some(claim),
            _ => None,
        };
        let claim = claim.expect("a free key");
        if number < count {
            let done =
                SavedResponse::new(StatusCode::CREATED, HeaderMap::new(), Bytes::new(), None);
            let completed = records.complete(&claim, &done, SECOND).await;
            completed.expect("the claim is there");
        }
    }
    pass(2 * SECOND).await;
    (records.clone(), FaultyStore::new(records))
}

#[tokio::test(start_paused = true)]
async fn a_purge_goes_on_at_once_until_a_batch_is_not_full_and_keeps_what_has_not_expired() {
    for (expired, calls) in [(0, 1), (9, 1), (10, 2), (20, 3), (25, 3)] {
        let (records, store) = with_expired(expired).await;
        let purger = Purger::new(store.clone()).with_batch(10).spawn();
        store.reached(Call::Purge, 1).await;
        let began = Instant::now();
        if calls > 1 {
            store.reached(Call::Purge, calls).await;
            assert_eq!(began.elapsed(), Duration::ZERO, "{expired} expired");
        }
        store.reached(Call::Purge, calls + 1).await;
        assert!(began.elapsed() > MINUTE / 2, "{expired} expired");
        assert_eq!(records.len(), 3);
        purger.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn others_get_in_between_two_batches() {
    let (records, store) = with_expired(25).await;
    let purger = Purger::new(store.clone()).with_batch(10).spawn();
    store.reached(Call::Purge, 1).await;
    let mut seen = BTreeSet::new();
    while records.len() > 3 {
        seen.insert(records.len());
        yield_times(1).await;
    }
    assert_eq!(seen, BTreeSet::from([8, 18]));
    purger.stop().await;
}

#[tokio::test(start_paused = true)]
async fn purgers_that_start_together_purge_at_different_times() {
    let mut purgers = JoinSet::new();
    for _ in 0..40 {
        purgers.spawn(async {
            let (start, store) = (Instant::now(), FaultyStore::new(MemoryStore::new()));
            let purger = Purger::new(store.clone()).with_interval(MINUTE).spawn();
            let mut times = Vec::new();
            for call in 1..=5 {
                store.reached(Call::Purge, call).await;
                times.push(start.elapsed());
            }
            purger.stop().await;
            times
        });
    }
    let times = purgers.join_all().await;
    // A timer may fire up to a millisecond late.
    let tick = Duration::from_millis(1);
    let mut firsts = HashSet::new();
    let mut pauses = HashSet::new();
    for times in &times {
        assert!(times[0] <= MINUTE + tick, "{times:?}");
        firsts.insert(times[0]);
        for pair in times.windows(2) {
            let pause = pair[1] - pair[0];
            assert!(pause >= MINUTE * 9 / 10, "{times:?}");
            assert!(pause <= MINUTE * 11 / 10 + tick, "{times:?}");
            pauses.insert(pause);
        }
    }
    assert!(firsts.len() > 10, "{firsts:?}");
    assert!(pauses.len() > 40, "{pauses:?}");
    assert!(firsts.iter().any(|first| *first < MINUTE / 2), "{firsts:?}");
    assert!(firsts.iter().any(|first| *first > MINUTE / 2), "{firsts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_purge_that_fails_is_not_repeated_before_the_next_turn_and_ends_nothing() {
    for fault in [
        Fault::Fails(StoreErrorKind::Unavailable),
        Fault::Panics,
        Fault::PanicsAfter,
        Fault::LosesAnswer(StoreErrorKind::Other),
    ] {
        let (records, store) = with_expired(25).await;
        store.then_works(Call::Purge).then(Call::Purge, fault);
        let purger = Purger::new(store.clone()).with_batch(10).spawn();
        store.reached(Call::Purge, 2).await;
        let failed = Instant::now();
        store.reached(Call::Purge, 3).await;
        assert!(failed.elapsed() >= MINUTE * 9 / 10, "{fault:?}");
        purger.stop().await;
        assert!(records.len() < 18, "{fault:?}: {records:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_the_call_under_way_and_for_no_other() {
    for fault in [Fault::Hangs, Fault::AnswersLate] {
        let (records, store) = with_expired(25).await;
        store.then(Call::Purge, fault);
        let purger = Purger::new(store.clone()).with_batch(10).spawn();
        store.reached(Call::Purge, 1).await;
        let stopping = tokio::spawn(purger.stop());
        pass(10 * MINUTE).await;
        assert!(!stopping.is_finished());
        store.let_go();
        stopping.await.expect("it stops");
        store.all_calls_ended().await;
        pass(10 * MINUTE).await;
        assert_eq!((store.count(Call::Purge), records.len()), (1, 18));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_is_dropped_stops_the_purger_but_not_its_call() {
    for stops in [false, true] {
        let (records, store) = with_expired(25).await;
        store.then(Call::Purge, Fault::Hangs);
        let purger = Purger::new(store.clone()).with_batch(10).spawn();
        store.reached(Call::Purge, 1).await;
        if stops {
            // Dropped in the middle of stopping.
            let stopping = tokio::time::timeout(SECOND, purger.stop());
            assert!(stopping.await.is_err());
        } else {
            drop(purger);
        }
        store.let_go();
        pass(10 * MINUTE).await;
        store.all_calls_ended().await;
        assert_eq!((store.count(Call::Purge), records.len()), (1, 18));
    }
}

#[tokio::test(start_paused = true)]
async fn a_purger_that_waits_for_its_turn_stops_at_once() {
    let store = FaultyStore::new(MemoryStore::new());
    let began = Instant::now();
    let day = 1440 * MINUTE;
    let purger = Purger::new(store.clone()).with_interval(365 * day).spawn();
    purger.stop().await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    pass(1_000 * day).await;
    assert_eq!(store.count(Call::Purge), 0);
}

#[tokio::test]
async fn settings_that_make_no_sense_panic_naming_themselves() {
    let purger = || Purger::new(MemoryStore::new());
    for (purger, setting) in [
        (purger().with_interval(Duration::ZERO), "with_interval"),
        (purger().with_interval(Duration::MAX), "with_interval"),
        (purger().with_batch(0), "with_batch"),
    ] {
        let spawned = catch_unwind(AssertUnwindSafe(|| drop(purger.spawn())));
        let panic = spawned.expect_err("a panic");
        let message = panic.downcast::<String>().map_or_else(
            |panic| (*panic.downcast::<&str>().expect("a text")).to_owned(),
            |text| *text,
        );
        assert!(message.contains(setting), "{message}");
    }
    purger().with_batch(u32::MAX).spawn().stop().await;
}
