//! What the store rests on: how `ClusterConnection` of redis 1.8 behaves.

use std::{future::Future, time::Duration};

use redis::{
    FromRedisValue, RedisResult, Script, cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection, cmd,
};
use tokio::time::timeout;

use crate::servers::{Fault, Proxy, Redis, RedisCluster};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);
/// Longer than a single connection waits for a response by default.
const SILENCE: Duration = Duration::from_millis(1500);
const SHORT: Duration = Duration::from_millis(100);

/// A cluster, a proxy before each of its nodes, and a client through these.
macro_rules! world {
    ($settings:expr) => {{
        let Some(cluster) = RedisCluster::start_with($settings) else {
            return;
        };
        let (proxies, client) = cluster.proxied();
        (cluster, proxies, client)
    }};
}

async fn connect(client: ClusterClientBuilder) -> ClusterConnection {
    let client = client.build().unwrap();
    client.get_async_connection().await.unwrap()
}

fn run<T: FromRedisValue>(
    connection: &ClusterConnection,
    command: &[&str],
) -> impl Future<Output = RedisResult<T>> + use<T> {
    let mut connection = connection.clone();
    let mut words = cmd(command[0]);
    words.arg(&command[1..]);
    async move { words.query_async(&mut connection).await }
}

fn inject(proxies: &[Proxy], fault: Fault, text: &str) -> Vec<crate::servers::Strikes> {
    proxies
        .iter()
        .map(|proxy| proxy.inject(fault.on(text)))
        .collect()
}

fn sent(proxies: &[Proxy], text: &str) -> usize {
    proxies.iter().map(|proxy| proxy.count(text)).sum()
}

fn counted(cluster: &RedisCluster, key: &str) -> i32 {
    let value: Option<i32> = cluster.master_of(key).run(&["GET", key]).unwrap();
    value.unwrap_or_default()
}

async fn until(mut condition: impl FnMut() -> bool) {
    let poll = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, poll).await.expect("what is waited for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_connection_breaks_is_sent_again_also_if_it_was_executed() {
    let (cluster, proxies, client) = world!(&[]);
    let connection = connect(client).await;
    inject(&proxies, Fault::CutAfter, "INCR lost");
    assert_eq!(run(&connection, &["INCR", "lost"]).await, Ok(2));
    assert_eq!(
        (sent(&proxies, "INCR lost"), counted(&cluster, "lost")),
        (2, 2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_retries_it_is_sent_once() {
    let (cluster, proxies, client) = world!(&[]);
    let connection = connect(client.retries(0)).await;
    inject(&proxies, Fault::CutAfter, "INCR lost");
    let lost = run::<i32>(&connection, &["INCR", "lost"])
        .await
        .unwrap_err();
    assert!(lost.is_connection_dropped(), "{lost}");
    assert_eq!(
        (sent(&proxies, "INCR lost"), counted(&cluster, "lost")),
        (1, 1)
    );
    // Nor is a node followed to which the key has gone.
    cluster.fail_over("lost");
    let moved = run::<i32>(&connection, &["INCR", "lost"])
        .await
        .unwrap_err();
    assert_eq!(moved.code(), Some("MOVED"), "{moved}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_not_answered_in_time_is_sent_again_and_may_be_executed_each_time() {
    let (cluster, proxies, client) = world!(&[]);
    let client = client
        .response_timeout(SHORT)
        .overall_response_timeout(None)
        .retries(3);
    let connection = connect(client).await;
    inject(&proxies, Fault::SwallowReply, "INCR late");
    let late = run::<i32>(&connection, &["INCR", "late"])
        .await
        .unwrap_err();
    assert!(late.is_timeout(), "{late}");
    assert_eq!(counted(&cluster, "late"), 1);
    for proxy in &proxies {
        proxy.resume();
    }
    until(|| counted(&cluster, "late") == 4).await;
    assert_eq!(sent(&proxies, "INCR late"), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_for_a_response_bounds_all_attempts_together_and_is_unlimited_by_default() {
    let (cluster, proxies, client) = world!(&[]);
    let connection = connect(client).await;
    inject(&proxies, Fault::SwallowReply, "INCR");
    let mut waits = Box::pin(run::<i32>(&connection, &["INCR", "late"]));
    timeout(SILENCE, &mut waits).await.expect_err("no limit");
    assert_eq!(counted(&cluster, "late"), 1);
    for proxy in &proxies {
        proxy.heal();
        proxy.resume();
    }
    assert_eq!(waits.await, Ok(1));

    let (proxies, client) = cluster.proxied();
    let connection = connect(client.response_timeout(SHORT)).await;
    inject(&proxies, Fault::SwallowReply, "INCR");
    let late = run::<i32>(&connection, &["INCR", "late"])
        .await
        .unwrap_err();
    assert!(late.is_timeout(), "{late}");
    assert_eq!(counted(&cluster, "late"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed() {
    let (cluster, _proxies, client) = world!(&[]);
    let connection = connect(client).await;
    assert_eq!(run(&connection, &["INCR", "key"]).await, Ok(1));
    cluster.fail_over("key");
    assert_eq!(run(&connection, &["INCR", "key"]).await, Ok(2));
    let during = tokio::spawn(run(&connection, &["GET", "key"]));
    cluster.master_of("key").kill();
    assert!(matches!(during.await.unwrap(), Ok(2)));
    // Sent to a master that is down, it waits for the next one.
    assert!(run::<i32>(&connection, &["GET", "key"]).await.is_ok());
    cluster.settle();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_is_loaded_on_all_masters_which_fails_if_one_is_down() {
    let (cluster, proxies, client) = world!(&["cluster-require-full-coverage no"]);
    let mut connection = connect(client.retries(2).max_retry_wait(10).min_retry_wait(1)).await;
    let script = Script::new("return redis.call('INCR', KEYS[1])");
    let counted: RedisResult<i32> = script.key("key").invoke_async(&mut connection).await;
    assert_eq!(counted, Ok(1));
    assert_eq!(sent(&proxies, "SCRIPT LOAD"), 3);

    let master = cluster.master_of("key");
    let other = |node: &Redis| node.port() != master.port();
    let keys = (0..).map(|number: u32| number.to_string());
    let key = keys
        .into_iter()
        .find(|key| other(cluster.master_of(key)))
        .unwrap();
    let (replica, down) = (cluster.replica_of(&key), cluster.master_of(&key));
    replica.kill();
    down.kill();
    let counted: RedisResult<i32> = script.key("key").invoke_async(&mut connection).await;
    assert_eq!(counted, Ok(2));
    let () = master.run(&["SCRIPT", "FLUSH"]).unwrap();
    let lost: RedisResult<i32> = script.key("key").invoke_async(&mut connection).await;
    assert!(lost.is_err());
    assert_eq!(master.run(&["GET", "key"]), Ok(2));
}
