//! Listing and counting: which of a server's names are records, on which server of a cluster, and what a page costs and can miss.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use redis::cluster::ClusterClient;
use tokio::task::block_in_place;
use tower_idempotency::{
    RecordKey, RedisStore, StoreErrorKind,
    store::{Counts, Cursor, ListRecords, Listed, RecordState, Store},
};

use crate::{
    redis_support::*,
    servers::{Redis, RedisCluster},
};

/// All pages, each with `limit` records at most.
async fn pages(store: &RedisStore, limit: u32) -> Vec<Vec<Listed>> {
    let (mut pages, mut next) = (Vec::new(), None);
    loop {
        let page = store.list_unsettled(Duration::ZERO, limit, next.as_ref());
        let page = page.await.unwrap();
        assert!(page.records.len() <= limit as usize);
        pages.push(page.records);
        next = page.next;
        if next.is_none() {
            return pages;
        }
    }
}

/// What the pages behind this place hold.
async fn pages_from(store: &RedisStore, limit: u32, mut next: Option<Cursor>) -> Vec<RecordKey> {
    let mut keys = Vec::new();
    while let Some(after) = next {
        let page = store
            .list_unsettled(Duration::ZERO, limit, Some(&after))
            .await
            .unwrap();
        keys.extend(page.records.iter().map(|listed| listed.key));
        next = page.next;
    }
    keys
}

async fn listed(store: &RedisStore, limit: u32) -> HashMap<RecordKey, RecordState> {
    let records = pages(store, limit).await.into_iter().flatten();
    records
        .map(|listed| (listed.key, listed.record.state))
        .collect()
}

async fn keys(store: &RedisStore, limit: u32) -> HashSet<RecordKey> {
    listed(store, limit).await.into_keys().collect()
}

async fn claimed(store: &RedisStore, count: usize) -> HashSet<RecordKey> {
    let keys: HashSet<_> = (0..count).map(|_| fresh_key()).collect();
    for key in &keys {
        claim(store, key, &terms()).await;
    }
    keys
}

fn counts(in_flight: u64, unknown: u64, completed: u64, bytes: u64) -> Counts {
    let mut counts = Counts::default();
    (counts.in_flight, counts.unknown, counts.completed) = (in_flight, unknown, completed);
    counts.response_bytes = Some(bytes);
    counts
}

#[tokio::test]
async fn a_prefix_is_taken_literally() {
    let Some(server) = Redis::start() else { return };
    let mut all = Vec::new();
    // Each of them, read as a pattern, would have names of another one.
    for prefix in [
        "*", "?", "[ab]", "a", "ab", "\\a", "a\\", "a:*", "é", "", "a]",
    ] {
        let store = store_at(server.url()).with_prefix(prefix);
        let keys = claimed(&store, 2).await;
        all.push((prefix, store, keys));
    }
    for (prefix, store, expected) in &all {
        assert_eq!(keys(store, 100).await, *expected, "{prefix:?}");
        assert_eq!(store.count_records().await.unwrap(), counts(2, 0, 0, 0));
    }
}

#[tokio::test]
async fn what_is_not_a_record_is_neither_listed_nor_counted() {
    let Some(server) = Redis::start() else { return };
    let store = store_at(server.url());
    let expected = claimed(&store, 1).await;
    let [newer, cut, state, hash, list] = [(); 5].map(|()| name_of(&fresh_key()));
    let newer_record = format!("\\002{}", "x".repeat(200));
    let strange_state = format!("\\001\\003{}", "x".repeat(70));
    for (name, text) in [
        (&newer, newer_record),
        (&cut, "\\001".into()),
        (&state, strange_state),
    ] {
        let script = format!("return redis.call('SET', KEYS[1], \"{text}\")");
        let () = server.run(&["EVAL", &script, "1", name]).unwrap();
    }
    let () = server.run(&["HSET", &hash, "field", "value"]).unwrap();
    let () = server.run(&["RPUSH", &list, "value"]).unwrap();
    let upper = name_of(expected.iter().next().unwrap()).to_uppercase();
    let digits = name_of(&fresh_key());
    for name in [
        "other",
        "tower-idempotency",
        "tower-idempotency:",
        "tower-idempotency:{}",
        "tower-idempotency:{00}",
        &upper.replace("TOWER-IDEMPOTENCY", "tower-idempotency"),
        &digits.replace('}', "0}"),
        &digits.replace("y:{", "y:{{"),
        &format!("{digits}:more"),
        &format!("before-{digits}"),
    ] {
        let () = server.run(&["SET", name, "value"]).unwrap();
    }
    assert_eq!(keys(&store, 100).await, expected);
    assert_eq!(store.count_records().await.unwrap(), counts(1, 0, 0, 0));
}

#[tokio::test]
async fn each_state_is_told_and_counted() {
    let Some(server) = Redis::start() else { return };
    let store = store_at(server.url());
    let [running, abandoned, done, freed, gone] = [(); 5].map(|()| fresh_key());
    claim(&store, &running, &terms()).await;
    let given_up = claim(&store, &abandoned, &terms()).await;
    store.abandon(&given_up, RETENTION).await.unwrap();
    let completed = claim(&store, &done, &terms()).await;
    store
        .complete(&completed, &response("done"), RETENTION)
        .await
        .unwrap();
    claim(&store, &freed, &terms()).await;
    assert_eq!(
        server.run::<u32>(&["PERSIST", &name_of(&freed)]).unwrap(),
        1
    );
    let released = claim(&store, &gone, &terms()).await;
    store.release(&released).await.unwrap();

    let mut listed = listed(&store, 100).await;
    assert!(matches!(
        listed.remove(&running),
        Some(RecordState::InFlight { lease_left, .. }) if !lease_left.is_zero() && lease_left <= LEASE
    ));
    for key in [abandoned, freed] {
        assert!(matches!(listed.remove(&key), Some(RecordState::Unknown)));
    }
    assert!(listed.is_empty(), "{listed:?}");
    let bytes = response("done").encode().len() as u64;
    assert_eq!(store.count_records().await.unwrap(), counts(1, 2, 1, bytes));
}

#[tokio::test]
async fn many_records_are_found_among_many_others_by_pages_of_any_size() {
    let Some(server) = Redis::start() else { return };
    let fill = "for i = 1, 30000 do redis.call('SET', 'other:' .. i, i) end";
    let () = server.run(&["EVAL", fill, "0"]).unwrap();
    let store = store_at(server.url());
    let expected = claimed(&store, 1_500).await;
    for limit in [1, 7, 1_500, u32::MAX] {
        let pages = pages(&store, limit).await;
        let found: HashSet<_> = pages.iter().flatten().map(|listed| listed.key).collect();
        assert_eq!(found, expected, "{limit}");
    }
    let counts = store.count_records().await.unwrap();
    assert_eq!(counts.in_flight, 1_500);
}

#[tokio::test]
async fn a_page_ends_after_so_many_steps_with_nothing_found() {
    let Some(server) = Redis::start() else { return };
    // In parts, none of which takes a busy machine as long as a command may.
    let fill = "for i = 1, 25000 do redis.call('SET', ARGV[1] .. i, i) end";
    for part in 0..10 {
        let prefix = format!("other {part}:");
        let () = server.run(&["EVAL", fill, "0", &prefix]).unwrap();
    }
    let store = store_at(server.url());
    let pages = pages(&store, 10).await;
    assert!(pages.len() > 1);
    assert!(pages.iter().all(Vec::is_empty));
}

#[tokio::test]
async fn nothing_is_asked_for_a_page_of_none() {
    let store = store_at("redis://127.0.0.1:1");
    let page = store.list_unsettled(Duration::ZERO, 0, None).await.unwrap();
    assert!(page.records.is_empty() && page.next.is_none());
}

/// A page of one record, of several, and the place behind it.
async fn first_page(store: &RedisStore) -> (RecordKey, Cursor) {
    let page = store.list_unsettled(Duration::ZERO, 1, None).await.unwrap();
    (page.records[0].key, page.next.unwrap())
}

#[tokio::test]
async fn a_record_that_is_settled_between_two_pages_is_not_listed_any_more() {
    let Some(server) = Redis::start() else { return };
    let store = store_at(server.url());
    let mut left = claimed(&store, 20).await;
    let (first, next) = first_page(&store).await;
    left.remove(&first);
    let gone = *left.iter().next().unwrap();
    left.remove(&gone);
    assert!(store.forget(&gone).await.unwrap());
    let page = store
        .list_unsettled(Duration::ZERO, 100, Some(&next))
        .await
        .unwrap();
    let found: HashSet<_> = page.records.iter().map(|listed| listed.key).collect();
    assert_eq!(found, left);
    assert!(page.next.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_of_another_store_or_of_a_server_before_its_restart_is_refused() {
    let (Some(server), Some(other)) = (Redis::start(), Redis::start()) else {
        return;
    };
    let store = store_at(server.url());
    claimed(&store, 3).await;
    let (_, next) = first_page(&store).await;
    let bytes = next.as_bytes();
    let mut cursors = vec![
        Cursor::from_bytes(*b""),
        Cursor::from_bytes([0; 40]),
        Cursor::from_bytes(&bytes[..bytes.len() - 1]),
        Cursor::from_bytes([bytes, b"more"].concat()),
    ];
    for store in [
        store_at(other.url()),
        store_at(server.url()).with_prefix("a"),
    ] {
        let refused = store.list_unsettled(Duration::ZERO, 1, Some(&next)).await;
        assert_kind(refused, StoreErrorKind::Other);
    }
    block_in_place(|| {
        server.kill();
        server.restart();
    });
    cursors.push(next);
    for cursor in cursors {
        let refused = store.list_unsettled(Duration::ZERO, 1, Some(&cursor)).await;
        assert_kind(refused, StoreErrorKind::Other);
    }
}

/// Of one who may list, and do nothing else.
const PERMISSIONS: [&str; 13] = [
    "ACL",
    "SETUSER",
    "lister",
    "on",
    ">secret",
    "~tower-idempotency:*",
    "-@all",
    "+info",
    "+scan",
    "+time",
    "+pttl",
    "+getrange",
    "+strlen",
];

#[tokio::test]
async fn a_listing_needs_these_permissions() {
    let Some(server) = Redis::start() else { return };
    let () = server.run(&PERMISSIONS).unwrap();
    let expected = claimed(&store_at(server.url()), 2).await;
    let url = server.url().replace("redis://", "redis://lister:secret@");
    let store = store_at(&url);
    assert_eq!(keys(&store, 100).await, expected);
    assert_eq!(store.count_records().await.unwrap(), counts(2, 0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_of_a_cluster_needs_these_permissions() {
    let Some(cluster) = block_in_place(RedisCluster::start) else {
        return;
    };
    let expected = claimed(&on_cluster(&cluster), 10).await;
    for node in cluster.nodes() {
        let of_cluster = ["+cluster|info", "+cluster|slots"];
        let () = node.run(&[&PERMISSIONS[..], &of_cluster].concat()).unwrap();
    }
    let client = ClusterClient::builder(cluster.urls())
        .username("lister")
        .password("secret");
    let store = RedisStore::cluster(client.build().unwrap());
    assert_eq!(keys(&store, 100).await, expected);
    assert_eq!(store.count_records().await.unwrap(), counts(10, 0, 0, 0));
}

fn on_cluster(cluster: &RedisCluster) -> RedisStore {
    let client = ClusterClient::builder(cluster.urls())
        .response_timeout(Duration::from_secs(5))
        .connection_timeout(Duration::from_secs(5));
    RedisStore::cluster(client.build().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_listed_on_all_of_its_masters() {
    let Some(cluster) = block_in_place(RedisCluster::start) else {
        return;
    };
    let store = on_cluster(&cluster);
    let expected = claimed(&store, 40).await;
    let masters = expected
        .iter()
        .map(|key| cluster.master_of(&name_of(key)).port());
    assert_eq!(masters.collect::<HashSet<_>>().len(), 3);
    let (done, _) = first_page(&store).await;
    for limit in [1, 9, 100] {
        assert_eq!(keys(&store, limit).await, expected, "{limit}");
    }
    let completed = claim(&store, &fresh_key(), &terms()).await;
    store
        .complete(&completed, &response("done"), RETENTION)
        .await
        .unwrap();
    let bytes = response("done").encode().len() as u64;
    assert_eq!(
        store.count_records().await.unwrap(),
        counts(40, 0, 1, bytes)
    );

    // Another process serves the records now, to which the old cursor means something else.
    let (_, next) = first_page(&store).await;
    block_in_place(|| cluster.fail_over(&name_of(&done)));
    let store = on_cluster(&cluster);
    let refused = store.list_unsettled(Duration::ZERO, 1, Some(&next)).await;
    assert_kind(refused, StoreErrorKind::Other);
    assert_eq!(keys(&store, 9).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_down_is_not_left_out() {
    let Some(cluster) = block_in_place(RedisCluster::start) else {
        return;
    };
    claimed(&on_cluster(&cluster), 30).await;
    block_in_place(|| {
        // Nobody takes over.
        let (replica, master) = (cluster.replica_of("any"), cluster.master_of("any"));
        replica.kill();
        master.kill();
    });
    let store = on_cluster(&cluster);
    let page = store.list_unsettled(Duration::ZERO, 100, None).await;
    assert_kind(page, StoreErrorKind::Unavailable);
    assert_kind(store.count_records().await, StoreErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_move_to_another_master_between_two_pages_are_listed() {
    let Some(cluster) = block_in_place(RedisCluster::start) else {
        return;
    };
    let store = on_cluster(&cluster);
    let expected = claimed(&store, 40).await;
    let (first, next) = first_page(&store).await;
    let from = cluster.master_of(&name_of(&first));
    let here = |key: &&RecordKey| cluster.master_of(&name_of(key)).port() == from.port();
    let others: Vec<_> = expected.iter().filter(|key| **key != first).collect();
    let mut found: Vec<_> = others.iter().copied().filter(here).collect();
    let elsewhere = others.iter().copied().find(|key| !here(key)).unwrap();
    let to = cluster.master_of(&name_of(elsewhere));
    // The slot of one moves for good, that of another is in the middle of it.
    let (moved, moving) = (found.pop().unwrap(), found.pop().unwrap());
    block_in_place(|| {
        migrate(from, to, &name_of(moved), true);
        migrate(from, to, &name_of(moving), false);
    });

    let mut rest = pages_from(&store, 7, Some(next)).await;
    rest.push(first);
    assert_eq!(rest.into_iter().collect::<HashSet<_>>(), expected);
}

/// Moves a key, and its slot as well or not yet.
fn migrate(from: &Redis, to: &Redis, name: &str, for_good: bool) {
    let slot: u16 = from.run(&["CLUSTER", "KEYSLOT", name]).unwrap();
    let slot = slot.to_string();
    let [from_id, to_id] = [from, to].map(|node| node.run::<String>(&["CLUSTER", "MYID"]).unwrap());
    let set = |node: &Redis, state: &str, id: &str| {
        node.run::<()>(&["CLUSTER", "SETSLOT", &slot, state, id])
            .unwrap();
    };
    set(to, "IMPORTING", &from_id);
    set(from, "MIGRATING", &to_id);
    let port = to.port().to_string();
    let () = from
        .run(&["MIGRATE", "127.0.0.1", &port, name, "0", "5000"])
        .unwrap();
    if for_good {
        set(to, "NODE", &to_id);
        set(from, "NODE", &to_id);
    }
}
