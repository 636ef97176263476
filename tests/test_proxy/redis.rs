//! With the protocol of Redis, in both of its versions.

use std::{future::Future, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, RedisError, Value, aio::MultiplexedConnection,
    cmd,
};
use tokio::time::timeout;
use uuid::Uuid;

use crate::servers::{Fault, Proxy, Redis, redis, valkey};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);
const VERSIONS: [&str; 2] = ["resp2", "resp3"];

type Sent<T = i32> = Result<T, RedisError>;

struct World {
    proxy: Proxy,
    server: &'static Redis,
    version: &'static str,
    /// A number that the test has for itself.
    key: String,
}

/// On each kind of server that there is, in each version of the protocol.
fn worlds() -> impl Iterator<Item = World> {
    let servers = [redis(), valkey()].into_iter().flatten();
    servers.flat_map(|server| {
        VERSIONS.map(|version| World {
            proxy: Proxy::start(server.url()),
            server,
            version,
            key: Uuid::new_v4().to_string(),
        })
    })
}

impl World {
    /// Through the proxy.
    async fn connect(&self) -> MultiplexedConnection {
        let connection = connect(self.proxy.url(), self.version).await;
        connection.expect("a connection")
    }

    /// Counts.
    fn incr(&self, connection: &MultiplexedConnection) -> impl Future<Output = Sent> + use<> {
        run(connection, &["INCR", &self.key])
    }

    /// How far it counted, past the proxy.
    fn counted(&self) -> i32 {
        let value: Option<i32> = self.server.run(&["GET", &self.key]).expect("an answer");
        value.unwrap_or_default()
    }
}

async fn connect(url: &str, version: &str) -> Sent<MultiplexedConnection> {
    let client = Client::open(format!("{url}?protocol={version}"))?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LIMIT))
        .set_response_timeout(Some(LIMIT));
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await
}

/// A connection may have several commands under way.
fn run<T: FromRedisValue>(
    connection: &MultiplexedConnection,
    command: &[&str],
) -> impl Future<Output = Sent<T>> + use<T> {
    let mut connection = connection.clone();
    let (name, arguments) = command.split_first().expect("a command");
    let mut words = cmd(name);
    words.arg(arguments);
    async move { words.query_async(&mut connection).await }
}

/// Its end, which must come.
async fn end<T>(future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.expect("an end")
}

fn broken(sent: &Sent) -> bool {
    let error = sent.as_ref().err();
    error.is_some_and(RedisError::is_connection_dropped)
}

#[tokio::test]
async fn commands_are_counted_and_connecting_is_not() {
    for world in worlds() {
        let connection = world.connect().await;
        assert_eq!(world.incr(&connection).await, Ok(1));
        let () = run(&connection, &["PING"]).await.expect("an answer");
        assert_eq!(world.incr(&connection).await, Ok(2));
        assert_eq!(world.proxy.round_trips(), 2);
        assert_eq!(world.proxy.count(&format!("INCR {}", world.key)), 2);
        assert_eq!(world.proxy.count("INCR another"), 0);

        let mut several = redis::pipe();
        several.atomic().incr(&world.key, 1).incr(&world.key, 1);
        let results: Sent<Vec<i32>> = several.query_async(&mut connection.clone()).await;
        assert_eq!(results, Ok(vec![3, 4]));
        // Two more begin and end the transaction.
        assert_eq!(world.proxy.round_trips(), 6);
    }
}

#[tokio::test]
async fn every_kind_of_answer_passes_whole() {
    const LARGE: &str =
        "local all = {} for i = 1, 20000 do all[i] = {i, 'number ' .. i} end return all";
    const ANSWERS: [&[&str]; 10] = [
        &["ECHO", "line\r\n+another\r\n$5\r\n"],
        &["EVAL", "return {1, {2, {}, {'three', false}}, true}", "0"],
        &["EVAL", "return redis.error_reply('ERR a b')", "0"],
        &["GET", "nothing"],
        &["NOSUCHCOMMAND"],
        // Large, and the same whenever it is asked: those of COMMAND come in the order of a table that may grow meanwhile.
        &["EVAL", LARGE, "0"],
        &["COMMAND", "DOCS", "lpos"],
        &["CONFIG", "GET", "maxmemory"],
        &["HGETALL", "nothing"],
        &["BLPOP", "nothing", "0.01"],
    ];
    const KINDS: [&str; 12] = [
        "string", "integer", "double", "null", "array", "set", "map", "attrib", "push", "verbatim",
        "true", "bignum",
    ];
    // It sends each kind when it is told to.
    let Some(mut server) = Redis::start() else {
        return;
    };
    let setting = "enable-debug-command";
    let known: Vec<String> = server.run(&["CONFIG", "GET", setting]).expect("an answer");
    // Before 7.0 there is no such setting, and it always does.
    if !known.is_empty() {
        let told = Redis::start_with(&["enable-debug-command yes"]);
        server = told.expect("another one");
    }
    let proxy = Proxy::start(server.url());
    let debug = KINDS.map(|kind| ["DEBUG", "PROTOCOL", kind]);
    let debug = debug.iter().map(|command| &command[..]);
    for version in VERSIONS {
        let [through, direct] = [proxy.url(), server.url()].map(|url| connect(url, version));
        let through = through.await.expect("a connection");
        let direct = direct.await.expect("a connection");
        // Only the newer version has them all.
        let debug = debug.clone().filter(|_| version == "resp3");
        for command in ANSWERS.into_iter().chain(debug) {
            let expected: Sent<Value> = run(&direct, command).await;
            let strikes = proxy.inject(Fault::SwallowReply.on(&command.join(" ")));
            let swallowed = tokio::spawn(run(&through, command));
            // It strikes when the answer is complete.
            end(strikes.struck(1)).await;
            proxy.resume();
            let answer = end(swallowed).await.expect("no panic");
            assert_eq!(answer, expected, "{version}: {command:?}");
            let next: Sent<String> = end(run(&through, &["ECHO", "next"])).await;
            assert_eq!(next.as_deref(), Ok("next"), "{version}: {command:?}");
        }
    }
}

#[tokio::test]
async fn what_a_server_sends_unasked_passes_and_answers_nothing() {
    for world in worlds().filter(|world| world.version == "resp3") {
        let connection = world.connect().await;
        let () = run(&connection, &["CLIENT", "TRACKING", "ON"])
            .await
            .expect("told");
        for round in 0..3 {
            let read: Option<i32> = run(&connection, &["GET", &world.key]).await.expect("read");
            assert_eq!(read.unwrap_or_default(), round);
            // The connection is told that this changed.
            let () = world.server.run(&["INCR", &world.key]).expect("changed");
            let strikes = world.proxy.inject(Fault::SwallowReply.on("ECHO"));
            let next = tokio::spawn(run(&connection, &["ECHO", "next"]));
            end(strikes.struck(1)).await;
            world.proxy.resume();
            let next: Sent<String> = end(next).await.expect("no panic");
            assert_eq!(next.as_deref(), Ok("next"));
        }
    }
}

#[tokio::test]
async fn a_fault_strikes_the_chosen_command_only() {
    for world in worlds() {
        let connection = world.connect().await;
        let script = |by: &str| format!("return redis.call('INCRBY', KEYS[1], {by})");
        let mut hashes = Vec::new();
        for by in ["1", "10"] {
            let load = ["SCRIPT", "LOAD", &script(by)];
            let hash: String = run(&connection, &load).await.expect("a script");
            hashes.push(hash);
        }
        let strikes = world
            .proxy
            .inject(Fault::CutBefore.on(&format!("EVALSHA {}", hashes[1])));
        let eval = |hash, connection| run::<i32>(connection, &["EVALSHA", hash, "1", &world.key]);
        assert_eq!(eval(&hashes[0], &connection).await, Ok(1));
        assert!(broken(&eval(&hashes[1], &connection).await));
        assert_eq!((world.counted(), strikes.count()), (1, 1));
        let connection = world.connect().await;
        assert_eq!(eval(&hashes[1], &connection).await, Ok(11));

        // By a key too.
        let strikes = world.proxy.inject(Fault::CutBefore.on(&world.key));
        let () = run(&connection, &["GET", "another"])
            .await
            .expect("an answer");
        assert!(broken(&world.incr(&connection).await));
        assert_eq!((world.counted(), strikes.count()), (11, 1));
    }
}

#[tokio::test]
async fn cut_before_or_after_a_command() {
    for world in worlds() {
        for (fault, counted) in [(Fault::CutBefore, 0), (Fault::CutAfter, 1)] {
            let connection = world.connect().await;
            let strikes = world.proxy.inject(fault.on("INCR"));
            assert!(broken(&end(world.incr(&connection)).await));
            assert_eq!((world.counted(), strikes.count()), (counted, 1));
        }
        assert_eq!(world.incr(&world.connect().await).await, Ok(2));
    }
}

#[tokio::test]
async fn what_a_cut_off_client_has_sent_is_executed_when_it_is_let_go() {
    for world in worlds() {
        let connection = world.connect().await;
        let strikes = world.proxy.inject(Fault::CutClient.on("INCR"));
        assert!(broken(&end(world.incr(&connection)).await));
        assert_eq!((world.counted(), strikes.count()), (0, 1));
        world.proxy.resume();
        end(strikes.struck(2)).await;
        assert_eq!(world.counted(), 1);
    }
}

#[tokio::test]
async fn a_swallowed_reply_comes_when_it_is_let_go_or_is_lost() {
    for world in worlds() {
        let connection = world.connect().await;
        for lost in [false, true] {
            let strikes = world.proxy.inject(Fault::SwallowReply.on("INCR"));
            let counting = tokio::spawn(world.incr(&connection));
            end(strikes.struck(1)).await;
            let counted = 1 + i32::from(lost);
            assert_eq!(world.counted(), counted);
            assert!(!counting.is_finished());
            if lost {
                world.proxy.cut();
                assert!(broken(&end(counting).await.expect("no panic")));
            } else {
                // What follows on the connection waits behind it.
                let next = tokio::spawn(run(&connection, &["ECHO", "next"]));
                world.proxy.resume();
                assert_eq!(end(counting).await.expect("no panic"), Ok(1));
                let next: Sent<String> = end(next).await.expect("no panic");
                assert_eq!(next.as_deref(), Ok("next"));
            }
        }
    }
}

#[tokio::test]
async fn a_hanging_or_delayed_command_reaches_the_server_later_or_never() {
    for world in worlds() {
        let connection = world.connect().await;
        for fault in [Fault::Hang, Fault::Delay(Duration::from_millis(1))] {
            let before = world.counted();
            let strikes = world.proxy.inject(fault.on("INCR"));
            let counting = tokio::spawn(world.incr(&connection));
            end(strikes.struck(1)).await;
            if matches!(fault, Fault::Hang) {
                assert_eq!(world.counted(), before);
                assert!(!counting.is_finished());
                world.proxy.resume();
            }
            assert_eq!(end(counting).await.expect("no panic"), Ok(before + 1));
        }
        for fault in [Fault::Hang, Fault::Delay(LIMIT * 60)] {
            let connection = world.connect().await;
            let strikes = world.proxy.inject(fault.on("INCR"));
            let counting = tokio::spawn(world.incr(&connection));
            end(strikes.struck(1)).await;
            world.proxy.cut();
            assert!(broken(&end(counting).await.expect("no panic")));
        }
        assert_eq!(world.counted(), 2);
    }
}

#[tokio::test]
async fn nothing_gets_through_while_all_hangs_or_is_refused() {
    for world in worlds() {
        let connection = world.connect().await;
        world.proxy.hang_all();
        let counting = tokio::spawn(world.incr(&connection));
        while world.proxy.count("INCR") == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!((world.counted(), world.proxy.round_trips()), (0, 0));
        world.proxy.resume();
        assert_eq!(end(counting).await.expect("no panic"), Ok(1));

        world.proxy.refuse();
        assert!(broken(&world.incr(&connection).await));
        let refused = connect(world.proxy.url(), world.version).await;
        assert!(refused.expect_err("refused").is_connection_refusal());
        world.proxy.accept();
        assert_eq!(world.incr(&world.connect().await).await, Ok(2));
    }
}

#[tokio::test]
async fn a_subscription_is_refused_by_a_cut() {
    for world in worlds() {
        let connection = world.connect().await;
        let subscribed = run(&connection, &["SUBSCRIBE", "channel"]).await;
        assert!(broken(&subscribed));
    }
}
