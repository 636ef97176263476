//! What the store rests on: how `ConnectionManager` of redis 1.8 behaves.

use std::{future::Future, pin::pin, task::Context, time::Duration};

use redis::{
    Client, FromRedisValue, RedisError, RedisResult, Script,
    aio::{ConnectionManager, ConnectionManagerConfig},
    cmd,
};
use tokio::time::timeout;
use uuid::Uuid;

use crate::servers::{Fault, Proxy, Redis, redis, valkey};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);
/// A command that is limited by the driver has ended long before.
const SILENCE: Duration = Duration::from_millis(1500);
/// One of these per connection.
const CONNECTED: &str = "CLIENT SETINFO LIB-NAME";
const VERSIONS: [&str; 2] = ["resp2", "resp3"];

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
    async fn manager(&self) -> ConnectionManager {
        self.manager_with(patient()).await
    }

    async fn manager_with(&self, config: ConnectionManagerConfig) -> ConnectionManager {
        connect(self.proxy.url(), self.version, config).await
    }

    fn incr(&self, manager: &ConnectionManager) -> impl Future<Output = RedisResult<i32>> + use<> {
        run(manager, &["INCR", &self.key])
    }

    fn counted(&self) -> i32 {
        let value: Option<i32> = self.server.run(&["GET", &self.key]).unwrap();
        value.unwrap_or_default()
    }
}

async fn connect(url: &str, version: &str, config: ConnectionManagerConfig) -> ConnectionManager {
    let client = Client::open(format!("{url}?protocol={version}")).unwrap();
    client
        .get_connection_manager_with_config(config)
        .await
        .unwrap()
}

/// Answers may take as long as anything.
fn patient() -> ConnectionManagerConfig {
    ConnectionManagerConfig::new().set_response_timeout(Some(LIMIT))
}

fn run<T: FromRedisValue>(
    manager: &ConnectionManager,
    command: &[&str],
) -> impl Future<Output = RedisResult<T>> + use<T> {
    let mut manager = manager.clone();
    let mut words = cmd(command[0]);
    words.arg(&command[1..]);
    async move { words.query_async(&mut manager).await }
}

async fn until(mut condition: impl FnMut() -> bool) {
    let poll = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, poll).await.expect("what is waited for");
}

#[tokio::test]
async fn a_command_whose_connection_breaks_is_not_sent_again() {
    for world in worlds() {
        let manager = world.manager().await;
        for (fault, counted) in [(Fault::CutBefore, 0), (Fault::CutAfter, 1)] {
            let sent = world.proxy.count("INCR");
            world.proxy.inject(fault.on("INCR"));
            let lost = world.incr(&manager).await.unwrap_err();
            assert!(lost.is_connection_dropped() && lost.is_unrecoverable_error());
            // It comes when there is a new connection.
            let () = run(&manager, &["ECHO", "next"]).await.unwrap();
            assert_eq!(world.proxy.count("INCR"), sent + 1);
            assert_eq!(world.counted(), counted);
        }
    }
}

#[tokio::test]
async fn after_an_idle_connection_broke_the_first_command_fails_unsent_unless_resp3_told_of_it() {
    for world in worlds() {
        let manager = world.manager().await;
        world.proxy.cut();
        if world.version == "resp3" {
            // It connects by itself.
            until(|| world.proxy.count(CONNECTED) == 2).await;
        } else {
            let lost = world.incr(&manager).await.unwrap_err();
            assert!(lost.is_connection_dropped());
            assert_eq!(world.proxy.count("INCR"), 0);
        }
        assert_eq!(world.incr(&manager).await, Ok(1));
    }
}

#[tokio::test]
async fn the_time_for_a_response_does_not_limit_the_wait_for_a_connection() {
    for world in worlds() {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(Duration::from_millis(100)))
            .set_connection_timeout(Some(LIMIT));
        let manager = world.manager_with(config).await;
        world.proxy.hang_all();
        world.proxy.cut();
        let lost = world.incr(&manager).await.unwrap_err();
        assert!(lost.is_connection_dropped() || lost.is_timeout(), "{lost}");
        let mut next = Box::pin(world.incr(&manager));
        timeout(SILENCE, &mut next).await.expect_err("no limit");
        assert_eq!(world.counted(), 0);
    }
}

#[tokio::test]
async fn while_a_server_refuses_connections_commands_wait_for_all_attempts() {
    for world in worlds() {
        let manager = world.manager().await;
        world.proxy.refuse();
        let lost = world.incr(&manager).await.unwrap_err();
        assert!(lost.is_connection_dropped(), "{lost}");
        let next = tokio::spawn(world.incr(&manager));
        world.proxy.accept();
        assert_eq!(next.await.unwrap(), Ok(1));

        // Without further attempts the error comes at once, and each later command begins one.
        let config = patient().set_number_of_retries(0);
        let manager = world.manager_with(config).await;
        world.proxy.refuse();
        for _ in 0..3 {
            let lost = world.incr(&manager).await.unwrap_err();
            assert!(lost.is_connection_dropped(), "{lost}");
        }
        world.proxy.accept();
        let mut again = world.incr(&manager).await;
        if again.is_err() {
            // The attempt before was refused, and is what this one was told.
            again = world.incr(&manager).await;
        }
        assert_eq!(again, Ok(2));
    }
}

#[tokio::test]
async fn a_response_is_awaited_for_half_a_second_and_the_connection_is_kept() {
    let config = ConnectionManagerConfig::new();
    assert_eq!(config.response_timeout(), Some(Duration::from_millis(500)));
    assert_eq!(config.connection_timeout(), Some(Duration::from_secs(1)));
    assert_eq!(config.number_of_retries(), 6);
    for world in worlds() {
        let manager = world.manager_with(config.clone()).await;
        let strikes = world.proxy.inject(Fault::SwallowReply.on("INCR"));
        let late = world.incr(&manager).await.unwrap_err();
        assert!(late.is_timeout() && late.is_io_error(), "{late}");
        assert!(!late.is_connection_dropped() && !late.is_unrecoverable_error());
        strikes.struck(1).await;
        assert_eq!(world.counted(), 1);
        // A new connection would answer.
        let behind = run::<String>(&manager, &["ECHO", "behind"]).await;
        assert!(behind.unwrap_err().is_timeout());
        assert_eq!(world.proxy.count(CONNECTED), 1);
        // What comes late answers nothing else.
        world.proxy.resume();
        let next = loop {
            let next = run::<String>(&manager, &["ECHO", "next"]).await;
            if !next.as_ref().is_err_and(RedisError::is_timeout) {
                break next;
            }
        };
        assert_eq!(next.as_deref(), Ok("next"));
        assert_eq!(world.proxy.count(CONNECTED), 1);
        assert_eq!(world.counted(), 1);
    }
}

#[tokio::test]
async fn a_command_whose_future_is_dropped_is_executed_if_it_was_written_and_else_not_sent() {
    for world in worlds() {
        let manager = world.manager().await;
        let strikes = world.proxy.inject(Fault::Hang.on("INCR"));
        let written = tokio::spawn(world.incr(&manager));
        strikes.struck(1).await;
        written.abort();
        assert!(written.await.unwrap_err().is_cancelled());
        world.proxy.resume();
        let next = run::<String>(&manager, &["ECHO", "next"]).await;
        assert_eq!(next.as_deref(), Ok("next"));
        assert_eq!(world.counted(), 1);

        // It is only given to the task that writes, which has no turn before the next await.
        let mut queued = Box::pin(world.incr(&manager));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(pin!(&mut queued).poll(&mut context).is_pending());
        drop(queued);
        let next = run::<String>(&manager, &["ECHO", "next"]).await;
        assert_eq!(next.as_deref(), Ok("next"));
        assert_eq!((world.proxy.count("INCR"), world.counted()), (1, 1));
    }
}

#[tokio::test]
async fn a_manager_stays_with_a_master_that_became_a_replica() {
    let (Some(old), Some(new)) = (Redis::start(), Redis::start()) else {
        return;
    };
    for version in VERSIONS {
        let manager = connect(old.url(), version, patient()).await;
        let before: i64 = run(&manager, &["CLIENT", "ID"]).await.unwrap();
        old.follow(&new);
        for _ in 0..2 {
            let refused = run::<i32>(&manager, &["INCR", "n"]).await.unwrap_err();
            assert_eq!(refused.code(), Some("READONLY"), "{refused}");
            assert!(!refused.is_unrecoverable_error());
        }
        let after: i64 = run(&manager, &["CLIENT", "ID"]).await.unwrap();
        assert_eq!(before, after);
        old.promote();
        assert!(run::<i32>(&manager, &["INCR", "n"]).await.is_ok());
    }
}

#[tokio::test]
async fn a_script_that_the_server_lost_is_loaded_and_called_again() {
    let Some(server) = Redis::start() else {
        return;
    };
    let proxy = Proxy::start(server.url());
    let mut manager = connect(proxy.url(), "resp2", patient()).await;
    let script = Script::new("return redis.call('INCR', KEYS[1])");
    for count in 1..=2 {
        let () = server.run(&["SCRIPT", "FLUSH"]).unwrap();
        let sent = proxy.statements().len();
        let counted: i32 = script.key("n").invoke_async(&mut manager).await.unwrap();
        assert_eq!(counted, count);
        let statements = proxy.statements();
        let words = statements[sent..].iter().map(|text| text.split(' ').next());
        let words: Vec<_> = words.flatten().collect();
        assert_eq!(words, ["EVALSHA", "SCRIPT", "EVALSHA"]);
    }
}
