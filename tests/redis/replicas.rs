//! `with_replicas`: a claim is on enough replicas before its handler runs, a response before it counts as saved.

use std::time::Duration;

use tokio::task::block_in_place;
use tower::Layer;
use tower_idempotency::{
    IdempotencyLayer, RejectionKind, ScopeBy, StoreErrorKind,
    store::{Note, Reservation, Steps, Store},
};

use crate::{
    redis_support::*,
    servers::Redis,
    support::{Body, post, probe::Probe, send},
};

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(10);

/// A master and its replica.
fn pair() -> Option<(Redis, Redis)> {
    let (master, replica) = (Redis::start()?, Redis::start()?);
    replica.follow(&master);
    Some((master, replica))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_is_on_the_replica() {
    let Some((master, replica)) = block_in_place(pair) else {
        return;
    };
    let store = store_at(master.url()).with_replicas(1, LONG);
    let mut keys = Vec::new();
    for _ in 0..50 {
        let key = fresh_key();
        let claimed = claim(&store, &key, &terms()).await;
        assert_eq!(stored(&replica, &key), stored(&master, &key));
        store
            .complete(&claimed, &response("done"), RETENTION)
            .await
            .unwrap();
        assert_eq!(stored(&replica, &key), stored(&master, &key));
        keys.push(key);
    }
    block_in_place(|| {
        master.kill();
        replica.promote();
    });
    let store = store_at(replica.url());
    for key in keys {
        assert_replays(&reserve(&store, &key).await, "done");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_replica_no_handler_runs_and_the_key_stays_free() {
    let Some((master, replica)) = block_in_place(pair) else {
        return;
    };
    let probe = Probe::new();
    let [patient, service] = [LONG, SHORT].map(|limit| {
        let store = store_at(master.url()).with_replicas(1, limit);
        IdempotencyLayer::new(store, ScopeBy::single_tenant())
            .with_store_call_limit(LONG)
            .layer(probe.service::<Body>())
    });
    assert_eq!(send(&patient, post("done", "1")).await.text(), "run 1");
    block_in_place(|| replica.freeze());

    let refused = send(&service, post("new", "1")).await;
    assert_eq!(refused.rejection(), Some(RejectionKind::StoreUnavailable));
    assert!(
        send(&service, post("done", "1")).await.is_replay(),
        "what is done needs no replica"
    );
    assert_eq!(probe.runs(), 1);
    // The claim was given back.
    until(|| async { master.run::<u32>(&["DBSIZE"]).unwrap() == 1 }).await;

    replica.thaw();
    until(|| async { send(&service, post("new", "1")).await.status() == 201 }).await;
    assert_eq!(probe.runs(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_the_replica_lacks_is_told_again_until_it_has_it() {
    let Some((master, replica)) = block_in_place(pair) else {
        return;
    };
    let key = fresh_key();
    let patient = store_at(master.url()).with_replicas(1, LONG);
    let claimed = claim(&patient, &key, &terms()).await;
    let other = claim(&patient, &fresh_key(), &terms()).await;
    block_in_place(|| replica.freeze());
    let store = store_at(master.url()).with_replicas(1, SHORT);

    let complete = async || store.complete(&claimed, &response("done"), RETENTION).await;
    assert_kind(complete().await, StoreErrorKind::Other);
    // A repetition must not take the word of a replica for what it has not seen, also on a connection that has written nothing yet.
    assert_kind(complete().await, StoreErrorKind::Other);
    let elsewhere = store_at(master.url()).with_replicas(1, SHORT);
    let again = elsewhere
        .complete(&claimed, &response("done"), RETENTION)
        .await;
    assert_kind(again, StoreErrorKind::Other);

    let note = Note::new("step", "1");
    assert_kind(store.note(&other, &note).await, StoreErrorKind::Other);

    replica.thaw();
    until(|| async { store.note(&other, &note).await.is_ok() }).await;
    assert_eq!(
        stored(&replica, other.key()),
        stored(&master, other.key()),
        "a note as well"
    );
    until(|| async { complete().await.is_ok() }).await;
    assert_eq!(stored(&replica, &key), stored(&master, &key));
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_lost_is_lost_whatever_the_replicas_say() {
    let Some((master, replica)) = block_in_place(pair) else {
        return;
    };
    let store = store_at(master.url()).with_replicas(1, LONG);
    let key = fresh_key();
    let late = claim(&store, &key, &terms()).await;
    store.abandon(&late, RETENTION).await.unwrap();
    block_in_place(|| replica.freeze());
    let store = store_at(master.url()).with_replicas(1, SHORT);
    let lost = store.complete(&late, &response("late"), RETENTION).await;
    assert_kind(lost, StoreErrorKind::LostClaim);
    assert!(matches!(reserve(&store, &key).await, Reservation::Unknown));
    replica.thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_and_forgotten_scripts_are_what_they_are_without_replicas() {
    let Some((master, _replica)) = block_in_place(pair) else {
        return;
    };
    let store = store_at(master.url()).with_replicas(1, LONG);
    let key = fresh_key();
    let claimed = claim(&store, &key, &terms()).await;
    master.run::<()>(&["SCRIPT", "FLUSH"]).unwrap();
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "done");

    master
        .run::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let refused = store.reserve(&fresh_key(), &fingerprint(1), &terms()).await;
    assert_kind(refused, StoreErrorKind::Full);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_hangs_does_not_hold_up_renewals() {
    let Some((master, replica)) = block_in_place(pair) else {
        return;
    };
    let store = store_at(master.url()).with_replicas(1, LONG);
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    block_in_place(|| replica.freeze());
    let waiting = {
        let store = store.clone();
        tokio::spawn(async move { store.reserve(&fresh_key(), &fingerprint(1), &terms()).await })
    };
    // The server has it, and waits for the replica.
    until(|| async { master.run::<u32>(&["DBSIZE"]).unwrap() == 2 }).await;
    store.renew(&claimed, LEASE).await.unwrap();
    store.ping().await.unwrap();
    assert!(!waiting.is_finished());
    replica.thaw();
    assert!(matches!(
        waiting.await.unwrap(),
        Ok(Reservation::Acquired(_))
    ));
}

#[test]
#[should_panic(expected = "with_replicas: at least one")]
fn no_replica_is_no_number_to_wait_for() {
    drop(store_at("redis://127.0.0.1").with_replicas(0, LONG));
}

#[test]
#[should_panic(expected = "with_replicas: the limit")]
fn the_limit_is_not_zero_which_would_mean_for_ever() {
    drop(store_at("redis://127.0.0.1").with_replicas(1, Duration::ZERO));
}
