//! What the store rests on: how `ClusterConnection` of redis 1.8 behaves.

use std::{future::Future, time::Duration};

use redis::{
    FromRedisValue, RedisResult, Script, cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection, cmd,
};
use tokio::time::timeout;

use crate::servers::{Fault, Proxy, RedisCluster};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);
/// Longer than a single connection waits for a response by default.
const SILENCE: Duration = Duration::from_millis(1500);
const SHORT: Duration = Duration::from_millis(300);

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

/// That before the master of the key.
fn before<'a>(cluster: &RedisCluster, proxies: &'a [Proxy], key: &str) -> &'a Proxy {
    let master = cluster.master_of(key).port();
    let nodes = cluster.nodes().iter();
    let number = nodes
        .map(|node| node.port())
        .position(|port| port == master);
    &proxies[number.unwrap()]
}

/// A key that another master serves.
fn another(cluster: &RedisCluster, key: &str) -> String {
    let master = cluster.master_of(key).port();
    let mut keys = (0..).map(|number: u32| number.to_string());
    let other = keys.find(|key| cluster.master_of(key).port() != master);
    other.unwrap()
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
    let proxy = before(&cluster, &proxies, "key");
    proxy.inject(Fault::CutAfter.on("INCR"));
    assert_eq!(run(&connection, &["INCR", "key"]).await, Ok(2));
    assert_eq!((proxy.count("INCR"), counted(&cluster, "key")), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_retries_it_is_sent_once_and_a_failover_is_not_followed() {
    let (cluster, proxies, client) = world!(&[]);
    let connection = connect(client.retries(0)).await;
    let proxy = before(&cluster, &proxies, "key");
    proxy.inject(Fault::CutAfter.on("INCR"));
    let lost = run::<i32>(&connection, &["INCR", "key"]).await.unwrap_err();
    assert!(lost.is_connection_dropped(), "{lost}");
    assert_eq!((proxy.count("INCR"), counted(&cluster, "key")), (1, 1));
    cluster.fail_over("key");
    let moved = run::<i32>(&connection, &["INCR", "key"]).await.unwrap_err();
    assert_eq!(moved.code(), Some("MOVED"), "{moved}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_awaited_without_limit_unless_one_is_set_which_bounds_all_attempts() {
    let (cluster, proxies, client) = world!(&[]);
    let connection = connect(client).await;
    let proxy = before(&cluster, &proxies, "key");
    proxy.inject(Fault::SwallowReply.on("INCR"));
    let mut waits = Box::pin(run::<i32>(&connection, &["INCR", "key"]));
    timeout(SILENCE, &mut waits).await.expect_err("no limit");
    assert_eq!(counted(&cluster, "key"), 1);
    proxy.resume();
    assert_eq!(waits.await, Ok(1));

    let (proxies, client) = cluster.proxied();
    let connection = connect(client.response_timeout(SHORT)).await;
    let proxy = before(&cluster, &proxies, "key");
    proxy.inject(Fault::SwallowReply.on("INCR"));
    let late = run::<i32>(&connection, &["INCR", "key"]).await.unwrap_err();
    assert!(late.is_timeout(), "{late}");
    until(|| counted(&cluster, "key") == 2).await;
}

/// Whoever lifts the limit of all attempts gets this: nothing wakes up the command that is to be sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_timed_out_alone_is_repeated_only_when_another_command_comes() {
    let (cluster, proxies, client) = world!(&[]);
    let client = client.response_timeout(SHORT).retries(3);
    let connection = connect(client.overall_response_timeout(None)).await;
    let proxy = before(&cluster, &proxies, "key");
    proxy.inject(Fault::SwallowReply.on("INCR"));
    let mut late = tokio::spawn(run::<i32>(&connection, &["INCR", "key"]));
    timeout(SILENCE, &mut late).await.expect_err("no end");
    let other = another(&cluster, "key");
    while !late.is_finished() {
        // One that is late itself, on a slow machine, waits for another command, too.
        let another = run::<()>(&connection, &["GET", &other]);
        timeout(SHORT, another).await.ok();
    }
    let late = late.await.unwrap().unwrap_err();
    assert!(late.is_timeout(), "{late}");
    // All of them wait behind the answer, and are executed when the way is free.
    assert_eq!(counted(&cluster, "key"), 1);
    proxy.resume();
    until(|| proxy.count("INCR") == 4).await;
    until(|| counted(&cluster, "key") == 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_and_the_kill_of_a_master_are_followed() {
    let (cluster, _proxies, client) = world!(&[]);
    let connection = connect(client).await;
    assert_eq!(run(&connection, &["INCR", "key"]).await, Ok(1));
    cluster.fail_over("key");
    assert_eq!(run(&connection, &["INCR", "key"]).await, Ok(2));
    let replica = cluster.replica_of("key");
    cluster.master_of("key").kill();
    // It is sent again until the next master answers.
    let counted: i32 = run(&connection, &["INCR", "key"]).await.unwrap();
    assert!(counted > 0);
    cluster.settle();
    assert_eq!(cluster.master_of("key").port(), replica.port());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_one_master_lost_is_loaded_on_all_of_them() {
    let (cluster, proxies, client) = world!(&[]);
    let mut connection = connect(client).await;
    let script = Script::new("return redis.call('INCR', KEYS[1])");
    let call = script.key("key");
    // On replicas too if it is connected to them.
    let loaded_on = |times: usize| -> usize {
        let proxies = proxies.iter();
        proxies
            .filter(|proxy| proxy.count("SCRIPT LOAD") == times)
            .count()
    };
    assert_eq!(call.invoke_async(&mut connection).await, Ok(1));
    assert!(loaded_on(1) >= 3);
    let () = cluster.master_of("key").run(&["SCRIPT", "FLUSH"]).unwrap();
    assert_eq!(call.invoke_async(&mut connection).await, Ok(2));
    assert!(loaded_on(2) >= 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_with_a_wait_goes_to_the_master_of_its_key() {
    let (cluster, proxies, client) = world!(&[]);
    let mut connection = connect(client).await;
    let mut commands = redis::pipe();
    commands.cmd("INCR").arg("key");
    commands.cmd("WAIT").arg(1).arg(10_000);
    let answers: (i32, i32) = commands.query_async(&mut connection).await.unwrap();
    assert_eq!(answers, (1, 1));
    let proxy = before(&cluster, &proxies, "key");
    assert_eq!((proxy.count("INCR"), proxy.count("WAIT")), (1, 1));
    let all: usize = proxies.iter().map(|proxy| proxy.count("WAIT")).sum();
    assert_eq!(all, 1);
}
