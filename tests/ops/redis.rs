//! What is particular to Redis: prefixes, clusters, what the server must be like, and what there is not.

use redis::{Client, cluster::ClusterClient};
use serde_json::json;
use tokio::task::block_in_place;
use tower_idempotency::{RecordKey, RedisStore, SavedResponse};

use crate::{
    records::digits,
    servers::{Redis, RedisCluster},
    shop::{Shop, redis_lease},
    tool::ops,
};

const KEY: RecordKey = RecordKey::from_bytes([7; 32]);

#[tokio::test]
async fn there_is_nothing_to_purge() {
    let Some(shop) = redis_lease().await else {
        return;
    };
    shop.complete(KEY, &SavedResponse::tombstone()).await;
    let purged = shop.ops(&["purge", "--json"]).await;
    assert_eq!(purged.assert_code(0).json(), json!({ "purged": 0 }));
    assert_eq!(shop.ops(&["purge"]).await.out, "0 purged\n");
    assert!(shop.has(&KEY).await);
    let ping = shop.ops(&["ping", "--json"]).await;
    assert_eq!(ping.assert_code(0).json(), json!({ "ok": true }));
}

#[tokio::test]
async fn a_prefix_is_that_of_the_service() {
    let Some(shop) = redis_lease().await else {
        return;
    };
    let client = Client::open(shop.url.as_str()).expect("a client");
    let store = RedisStore::new(client).with_prefix("eu*");
    let other = Shop::over(shop.url.clone(), store);
    other.claim(KEY).await;
    let lists = [("tower-idempotency", 0), ("eu*", 1), ("eu", 0)];
    for (prefix, count) in lists {
        let list = shop.ops(&["list", "--json", "--prefix", prefix]).await;
        assert_eq!(list.assert_code(0).json_lines().len(), count, "{prefix}");
    }
    let inspect = ["inspect", &digits(&KEY)];
    shop.ops(&inspect).await.assert_code(1);
    let forget = ["forget", "--yes", "--prefix", "eu*", &digits(&KEY)];
    shop.ops(&forget).await.assert_code(0);
    assert!(!other.has(&KEY).await);
}

#[tokio::test]
async fn what_belongs_to_another_kind_of_store_is_wrong_usage() {
    let Some(shop) = redis_lease().await else {
        return;
    };
    for arguments in [
        &["ping", "--table", "leases"][..],
        &["ping", "--transaction"],
        &["ping", "--prefix", "{a}"],
    ] {
        shop.ops(arguments).await.assert_code(2);
    }
    let sqlite = crate::shop::sqlite_lease().await.expect("a file");
    for arguments in [
        &["ping", "--prefix", "a"][..],
        &["ping", "--allow-eviction"],
    ] {
        sqlite.ops(arguments).await.assert_code(2);
    }
    // Where the driver is built with TLS there is only nobody who answers.
    for url in ["rediss://127.0.0.1:1", "rediss-cluster://127.0.0.1:1"] {
        let refused = ops(&[url, "ping"]).await;
        let told = refused.code == 2 && refused.err.contains("TLS") || refused.code == 3;
        assert!(told, "{}", refused.err);
    }
    for url in [
        "redis://",
        "redis:",
        "redis://h:port",
        "redis-cluster://",
        "redis-cluster://a,,b",
    ] {
        ops(&[url, "ping"]).await.assert_code(2);
    }
}

#[tokio::test]
async fn a_server_that_evicts_is_told_unless_the_service_allows_it() {
    let Some(server) = Redis::start_with(&["maxmemory-policy allkeys-lru"]) else {
        return;
    };
    let refused = ops(&[server.url(), "ping"]).await;
    assert!(
        refused.assert_code(3).err.contains("allkeys-lru"),
        "{}",
        refused.err
    );
    ops(&[server.url(), "ping", "--allow-eviction"])
        .await
        .assert_code(0);
}

#[tokio::test]
async fn a_server_that_is_away_or_wants_another_password_is_told_without_it() {
    let Some(server) = Redis::start() else { return };
    let set = server.run(&["CONFIG", "SET", "requirepass", "right"]);
    let () = set.expect("a password");
    let with = |scheme: &str, user: &str, port: &str| format!("{scheme}://{user}@127.0.0.1:{port}");
    let port = server.port().to_string();
    for scheme in ["redis", "redis-cluster"] {
        for (user, port, code) in [
            (":s3cret", port.as_str(), 3),
            ("shop:s3cret", "1", 3),
            ("shop:s3cret", "port", 2),
            ("shop:s3cret%", "1,", 2),
        ] {
            let refused = ops(&[&with(scheme, user, port), "stats"]).await;
            refused.assert_code(code);
            assert!(!refused.err.contains("s3cret"), "{}", refused.err);
        }
    }
    ops(&[&with("redis", ":right", &port), "ping"])
        .await
        .assert_code(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_named_by_some_of_its_nodes() {
    let Some(cluster) = block_in_place(RedisCluster::start) else {
        return;
    };
    let client = ClusterClient::new(cluster.urls()).expect("a client");
    let [first, second] = [0, 1].map(|node: usize| cluster.nodes()[node].port());
    let url = format!("redis-cluster://127.0.0.1:{first},127.0.0.1:{second}");
    let shop = Shop::over(url, RedisStore::cluster(client));
    for byte in 0..30 {
        shop.claim(RecordKey::from_bytes([byte; 32])).await;
    }
    shop.complete(RecordKey::from_bytes([99; 32]), &SavedResponse::tombstone())
        .await;
    let list = shop.ops(&["list", "--json"]).await;
    assert_eq!(list.assert_code(0).json_lines().len(), 30);
    let stats = shop.ops(&["stats", "--json"]).await.json();
    assert_eq!(
        (&stats["in_flight"], &stats["completed"]),
        (&json!(30), &json!(1))
    );
    let key = RecordKey::from_bytes([3; 32]);
    shop.ops(&["forget", "--yes", &digits(&key)])
        .await
        .assert_code(0);
    assert!(!shop.has(&key).await);
    shop.ops(&["ping"]).await.assert_code(0);
}
