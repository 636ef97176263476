//! A server that may drop records before their time is refused, unless that is allowed or can't be known.

use std::collections::BTreeMap;

use tower_idempotency::{
    RedisStore, StoreError, StoreErrorKind,
    store::{Note, Reservation, Steps, Store},
};

use crate::{
    redis_support::*,
    servers::{Redis, RedisCluster},
};

fn is_refused<T: std::fmt::Debug>(result: Result<T, StoreError>, policy: &str) -> bool {
    let error = result.unwrap_err();
    let told = std::error::Error::source(&error).unwrap().to_string();
    assert!(!told.contains("  ") && !told.contains('\\'), "{told}");
    error.kind() == StoreErrorKind::Other
        && told.contains(policy)
        && told.contains("allow_eviction()")
}

#[tokio::test]
async fn every_evicting_policy_is_refused_at_start_and_by_the_first_claim() {
    let Some(server) = Redis::start() else { return };
    for policy in [
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
    ] {
        let () = server
            .run(&["CONFIG", "SET", "maxmemory-policy", policy])
            .unwrap();
        let store = store_at(server.url());
        assert!(is_refused(store.check().await, policy), "{policy}");
        let key = fresh_key();
        let claimed = store.reserve(&key, &fingerprint(1), &terms()).await;
        assert!(is_refused(claimed, policy), "{policy}");
        assert_eq!(left(&server, &key), -2);

        let store = store_at(server.url()).allow_eviction();
        store.check().await.unwrap();
        claim(&store, &key, &terms()).await;
    }
}

#[tokio::test]
async fn a_server_that_is_put_right_is_accepted() {
    let Some(server) = Redis::start() else { return };
    let set = |policy| {
        server
            .run::<()>(&["CONFIG", "SET", "maxmemory-policy", policy])
            .unwrap()
    };
    set("allkeys-lru");
    let store = store_at(server.url());
    assert!(is_refused(store.check().await, "allkeys-lru"));
    set("noeviction");
    store.check().await.unwrap();
    claim(&store, &fresh_key(), &terms()).await;
}

#[tokio::test]
async fn a_server_that_does_not_tell_is_accepted() {
    // A user who may not ask, with the permissions of the documentation; and a server whose command has another name.
    let Some(server) = Redis::start() else { return };
    let () = server.run(&PERMISSIONS).unwrap();
    let url = server.url().replace("redis://", "redis://app:secret@");
    whole_life(&store_at(&url)).await;

    let Some(server) = Redis::start_with(&["rename-command CONFIG \"\""]) else {
        return;
    };
    whole_life(&store_at(server.url())).await;
}

/// Every call, once.
async fn whole_life(store: &RedisStore) {
    store.check().await.unwrap();
    store.ping().await.unwrap();
    let key = fresh_key();
    let claimed = claim(store, &key, &terms()).await;
    store.renew(&claimed, LEASE).await.unwrap();
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(store, &key).await, "done");
    assert!(store.inspect(&key).await.unwrap().is_some());
    assert!(store.forget(&key).await.unwrap());
    let claimed = claim(store, &key, &terms()).await;
    store.release(&claimed).await.unwrap();
    let claimed = claim(store, &key, &terms()).await;
    let note = Note::new("step", "1");
    store.note(&claimed, &note).await.unwrap();
    assert_eq!(store.notes(&claimed).await.unwrap(), [note]);
    store.abandon(&claimed, RETENTION).await.unwrap();
    assert!(matches!(reserve(store, &key).await, Reservation::Unknown));
}

#[tokio::test]
async fn what_fails_before_the_question_is_no_refusal_of_it() {
    let Some(server) = Redis::start() else { return };
    // No such database; and a user who may not choose one.
    let check = async |url: String| store_at(&url).check().await;
    assert_kind(
        check(format!("{}/99", server.url())).await,
        StoreErrorKind::Other,
    );
    let user = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "+ping"];
    server.run::<()>(&user).unwrap();
    let url = server.url().replace("redis://", "redis://app:secret@");
    assert_kind(check(format!("{url}/1")).await, StoreErrorKind::Other);
    check(url).await.unwrap();
}

#[tokio::test]
async fn what_is_allowed_to_one_store_is_not_to_its_clones() {
    let Some(server) = Redis::start() else { return };
    let evicting = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    server.run::<()>(&evicting).unwrap();
    let store = store_at(server.url());
    store.clone().allow_eviction().check().await.unwrap();
    assert!(is_refused(store.check().await, "allkeys-lru"));
}

#[tokio::test]
async fn a_server_that_is_away_can_not_be_checked_and_is_checked_later() {
    let Some(server) = Redis::start() else { return };
    let () = server
        .run(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"])
        .unwrap();
    let store = store_at(server.url());
    tokio::task::spawn_blocking(move || {
        server.kill();
        server
    })
    .await
    .unwrap();
    assert_kind(store.check().await, StoreErrorKind::Unavailable);
    let claimed = store.reserve(&fresh_key(), &fingerprint(1), &terms()).await;
    assert_kind(claimed, StoreErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_evicting_master_of_a_cluster_is_enough_to_refuse_it() {
    let Some(cluster) = tokio::task::block_in_place(RedisCluster::start) else {
        return;
    };
    let client = redis::cluster::ClusterClient::new(cluster.urls()).unwrap();
    RedisStore::cluster(client.clone()).check().await.unwrap();
    the_documented_permissions_are_enough(&cluster).await;

    // Whichever it is.
    let set = |node: &Redis, policy: &str| {
        node.run::<()>(&["CONFIG", "SET", "maxmemory-policy", policy])
            .unwrap();
    };
    let masters: BTreeMap<_, _> = ('a'..='z')
        .map(|name| cluster.master_of(&name.to_string()))
        .map(|master| (master.port(), master))
        .collect();
    assert_eq!(masters.len(), 3);
    for one in masters.values() {
        set(one, "allkeys-lru");
        assert!(is_refused(
            RedisStore::cluster(client.clone()).check().await,
            "allkeys-lru"
        ));
        set(one, "noeviction");
    }
    set(cluster.master_of("x"), "allkeys-lru");
    RedisStore::cluster(client)
        .allow_eviction()
        .check()
        .await
        .unwrap();
}

/// Those of a server, and the one that a client of a cluster needs.
async fn the_documented_permissions_are_enough(cluster: &RedisCluster) {
    for node in cluster.nodes() {
        node.run::<()>(&[&PERMISSIONS[..], &["+cluster|slots"]].concat())
            .unwrap();
    }
    let client = redis::cluster::ClusterClient::builder(cluster.urls())
        .username("app")
        .password("secret")
        .build();
    whole_life(&RedisStore::cluster(client.unwrap())).await;
}

/// Of the documentation.
const PERMISSIONS: [&str; 17] = [
    "ACL",
    "SETUSER",
    "app",
    "on",
    ">secret",
    "~tower-idempotency:*",
    "+evalsha",
    "+eval",
    "+getrange",
    "+get",
    "+set",
    "+append",
    "+del",
    "+pexpire",
    "+pttl",
    "+time",
    "+ping",
];
