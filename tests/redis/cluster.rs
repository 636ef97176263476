//! A cluster: records are spread over its nodes, and survive the death of one.

use std::{collections::HashSet, time::Duration};

use redis::cluster::ClusterClient;
use tokio::task::block_in_place;
use tower_idempotency::{
    RecordKey, RedisStore,
    store::{Claim, Reservation, Store},
};

use crate::{redis_support::*, servers::RedisCluster};

fn store(cluster: &RedisCluster) -> RedisStore {
    let client = ClusterClient::builder(cluster.urls())
        .response_timeout(Duration::from_secs(1))
        .connection_timeout(Duration::from_secs(1))
        .build();
    RedisStore::cluster(client.unwrap())
}

async fn complete(store: &RedisStore, key: &RecordKey) -> Claim {
    let claimed = claim(store, key, &terms()).await;
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    claimed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_on_all_masters_and_each_call_finds_its_own() {
    let Some(cluster) = block_in_place(RedisCluster::start) else {
        return;
    };
    let store = store(&cluster);
    let keys: Vec<_> = (0..60).map(|_| fresh_key()).collect();
    for key in &keys {
        complete(&store, key).await;
    }
    for node in cluster.nodes() {
        node.run::<()>(&["SCRIPT", "FLUSH"]).unwrap();
    }
    let mut ports = HashSet::new();
    for key in &keys {
        let node = cluster.master_of(&name_of(key));
        assert!(!stored(node, key).is_empty());
        ports.insert(node.port());
        assert_replays(&reserve(&store, key).await, "done");
    }
    assert_eq!(ports.len(), 3);
    // A prefix has no say in it.
    let other = store.with_prefix("other");
    for key in &keys {
        claim(&other, key, &terms()).await;
        let name = name_of(key).replace("tower-idempotency", "other");
        let node = cluster.master_of(&name_of(key));
        assert_eq!(node.run::<u32>(&["EXISTS", &name]).unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_replicas_have_outlives_a_master() {
    let Some(cluster) = block_in_place(RedisCluster::start) else {
        return;
    };
    let store = store(&cluster).with_replicas(1, Duration::from_secs(5));
    let done = fresh_key();
    complete(&store, &done).await;
    let master = cluster.master_of(&name_of(&done)).port();
    let running = loop {
        let key = fresh_key();
        if cluster.master_of(&name_of(&key)).port() == master {
            break key;
        }
    };
    let claimed = claim(&store, &running, &terms()).await;

    block_in_place(|| {
        cluster.master_of(&name_of(&done)).kill();
        cluster.settle();
    });
    // The replica is the master now, and has none.
    let store = self::store(&cluster);
    assert_replays(&reserve(&store, &done).await, "done");
    assert!(matches!(
        reserve(&store, &running).await,
        Reservation::InFlight { .. }
    ));
    store
        .complete(&claimed, &response("late"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &running).await, "late");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_store_goes_on_when_another_node_takes_over() {
    let Some(cluster) = block_in_place(RedisCluster::start) else {
        return;
    };
    let store = store(&cluster);
    let key = fresh_key();
    let claimed = claim(&store, &key, &terms()).await;
    block_in_place(|| {
        cluster.fail_over(&name_of(&key));
        cluster.settle();
    });
    store.renew(&claimed, LEASE).await.unwrap();
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "done");

    let other = fresh_key();
    block_in_place(|| {
        cluster.master_of(&name_of(&other)).kill();
        cluster.settle();
    });
    // Repeated with its own nonce: the first of these may be done although its answer is an error.
    let terms = terms();
    until(|| async {
        let reserved = store.reserve(&other, &fingerprint(1), &terms).await;
        matches!(reserved, Ok(Reservation::Acquired(_)))
    })
    .await;
}
