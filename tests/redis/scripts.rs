//! The scripts: one round trip each, keys that are declared, and a server that has forgotten them.

use tower_idempotency::{
    RecordKey, StoreError, StoreErrorKind,
    store::{Note, Reservation, Store},
};

use crate::{
    redis_support::*,
    servers::{Fault, Proxy, Redis, redis},
};

/// How many round trips a call makes.
async fn trips<T: std::fmt::Debug>(
    proxy: &Proxy,
    call: impl Future<Output = Result<T, StoreError>>,
) -> usize {
    let before = proxy.round_trips();
    let answer = call.await;
    // A late release is told that it is late.
    assert!(
        answer
            .as_ref()
            .err()
            .map(StoreError::kind)
            .is_none_or(|kind| kind == StoreErrorKind::LostClaim),
        "{answer:?}"
    );
    proxy.round_trips() - before
}

#[tokio::test]
async fn each_call_is_one_round_trip() {
    let Some(server) = redis() else { return };
    let proxy = Proxy::start(server.url());
    let store = store_at(proxy.url());
    // The connection is made, the policy is asked for, and the scripts are sent once.
    use_it(&store, &proxy).await;
    for (call, trips) in use_it(&store, &proxy).await {
        assert_eq!(trips, 1, "{call}");
    }
}

async fn use_it(store: &dyn Store, proxy: &Proxy) -> Vec<(&'static str, usize)> {
    let (key, terms) = (fresh_key(), terms());
    let mut calls = Vec::new();
    let mut count = |call, trips| calls.push((call, trips));
    let over = run_again(terms.clone());
    count(
        "reserve",
        trips(proxy, store.reserve(&key, &fingerprint(1), &terms)).await,
    );
    count("in flight", trips(proxy, again(store, &key)).await);
    let claimed = claim(store, &key, &terms).await;
    count("renew", trips(proxy, store.renew(&claimed, LEASE)).await);
    let done = response("done");
    let complete = store.complete(&claimed, &done, RETENTION);
    count("complete", trips(proxy, complete).await);
    count("replay", trips(proxy, again(store, &key)).await);
    count(
        "mismatch",
        trips(proxy, store.reserve(&key, &fingerprint(2), &terms)).await,
    );
    count("late release", trips(proxy, store.release(&claimed)).await);
    count("inspect", trips(proxy, store.inspect(&key)).await);
    count("forget", trips(proxy, store.forget(&key)).await);
    let claimed = claim(store, &key, &terms).await;
    let (steps, note) = (store.steps().unwrap(), Note::new("step", "1"));
    count("note", trips(proxy, steps.note(&claimed, &note)).await);
    count("notes", trips(proxy, steps.notes(&claimed)).await);
    count(
        "abandon",
        trips(proxy, store.abandon(&claimed, RETENTION)).await,
    );
    count(
        "take over",
        trips(proxy, store.reserve(&key, &fingerprint(1), &over)).await,
    );
    let claimed = claim(store, &key, &over).await;
    count("release", trips(proxy, store.release(&claimed)).await);
    calls
}

#[tokio::test]
async fn a_server_that_forgets_its_scripts_gets_them_again() {
    let Some(server) = Redis::start() else { return };
    let store = store_at(server.url());
    let forget_scripts = || server.run::<()>(&["SCRIPT", "FLUSH"]).unwrap();
    let key = fresh_key();
    forget_scripts();
    let claimed = claim(&store, &key, &terms()).await;
    forget_scripts();
    store.renew(&claimed, LEASE).await.unwrap();
    forget_scripts();
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    forget_scripts();
    assert_replays(&reserve(&store, &key).await, "done");
    forget_scripts();
    assert!(store.inspect(&key).await.unwrap().is_some());
    let (key, other) = (fresh_key(), fresh_key());
    let (one, two) = (
        claim(&store, &key, &terms()).await,
        claim(&store, &other, &terms()).await,
    );
    let (steps, note) = (store.steps().unwrap(), Note::new("step", "1"));
    forget_scripts();
    steps.note(&one, &note).await.unwrap();
    forget_scripts();
    assert_eq!(steps.notes(&one).await.unwrap(), [note]);
    forget_scripts();
    store.release(&one).await.unwrap();
    forget_scripts();
    store.abandon(&two, RETENTION).await.unwrap();
    assert!(matches!(
        reserve(&store, &other).await,
        Reservation::Unknown
    ));
}

#[tokio::test]
async fn a_server_that_is_told_a_script_twice_does_it_once() {
    let Some(server) = redis() else { return };
    let proxy = Proxy::start(server.url());
    let store = store_at(proxy.url());
    store.check().await.unwrap();
    let key = fresh_key();
    // Each is executed, its answer is lost with the connection, and the store sends it again on another one.
    let lost = proxy.inject(Fault::CutAfter.on("EVAL"));
    let claimed = claim(&store, &key, &terms()).await;
    lost.struck(1).await;
    assert_eq!(claimed.attempt(), 1);
    proxy.inject(Fault::CutAfter.on("EVAL"));
    store.renew(&claimed, LEASE).await.unwrap();
    proxy.inject(Fault::CutAfter.on("EVAL"));
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    proxy.inject(Fault::CutAfter.on("EVAL"));
    assert_replays(&reserve(&store, &key).await, "done");

    let (key, other) = (fresh_key(), fresh_key());
    let (one, two) = (
        claim(&store, &key, &terms()).await,
        claim(&store, &other, &terms()).await,
    );
    proxy.inject(Fault::CutAfter.on("EVAL"));
    store.release(&one).await.unwrap();
    assert_eq!(left(server, &key), -2);
    proxy.inject(Fault::CutAfter.on("EVAL"));
    store.abandon(&two, RETENTION).await.unwrap();
    assert!(matches!(
        reserve(&store, &other).await,
        Reservation::Unknown
    ));
}

async fn again(store: &dyn Store, key: &RecordKey) -> Result<Reservation, StoreError> {
    store.reserve(key, &fingerprint(1), &terms()).await
}
