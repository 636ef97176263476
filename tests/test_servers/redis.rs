//! Redis, and Valkey where there is one.

use std::{net::TcpStream, time::Duration};

use redis::{Client, ErrorKind, RedisError, aio::MultiplexedConnection, cmd};
use tokio::time::timeout;

use crate::servers::{DURABLE, Redis, redis, valkey};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);
/// A server that runs has answered long before.
const SILENCE: Duration = Duration::from_millis(200);

/// With these settings, on each kind of server that there is.
fn private(settings: &[&str]) -> impl Iterator<Item = Redis> {
    let servers = [Redis::start_with(settings), Redis::start_valkey(settings)];
    servers.into_iter().flatten()
}

#[test]
fn the_tests_share_a_server() {
    for shared in [redis, valkey] {
        let url = || shared().map(|server| server.url());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(url)).collect();
            for thread in threads {
                assert_eq!(thread.join().expect("no panic"), url());
            }
        });
        if let Some(server) = shared() {
            let () = server.run(&["SET", "shared", "1"]).expect("a key");
            assert_eq!(server.run(&["GET", "shared"]), Ok(1));
        }
    }
}

#[tokio::test]
async fn a_frozen_server_answers_when_it_is_thawed() {
    for server in private(&[]) {
        let mut open = connect(&server).await.expect("a connection");
        for _ in 0..2 {
            server.freeze();
            assert!(!server.runs());
            let mut ping = cmd("PING");
            let mut query = Box::pin(ping.query_async::<String>(&mut open));
            timeout(SILENCE, &mut query).await.expect_err("no answer");
            server.thaw();
            let answer = timeout(LIMIT, query).await.expect("in time");
            assert_eq!(answer.expect("an answer"), "PONG");
            assert!(server.runs());
            ping = cmd("PING");
            let () = ping.query_async(&mut open).await.expect("another one");
        }
    }
}

#[tokio::test]
async fn a_durable_server_that_was_killed_restarts_with_what_it_acknowledged() {
    for server in private(&DURABLE) {
        for round in 0..3_usize {
            let mut open = connect(&server).await.expect("a connection");
            for number in 0..100 {
                let () = cmd("RPUSH")
                    .arg("acknowledged")
                    .arg(round * 100 + number)
                    .query_async(&mut open)
                    .await
                    .expect("acknowledged");
            }
            if round == 1 {
                server.freeze();
            }
            server.kill();
            assert!(!server.runs());
            let lost: Result<(), RedisError> = cmd("PING").query_async(&mut open).await;
            assert!(lost.expect_err("no server").is_connection_dropped());
            let refused = connect(&server).await.expect_err("nobody listens");
            assert!(refused.is_connection_refusal(), "{refused}");
            server.restart();
            let kept: Vec<usize> = server
                .run(&["LRANGE", "acknowledged", "0", "-1"])
                .expect("a list");
            assert_eq!(kept, (0..(round + 1) * 100).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_server_forgets_all_when_it_is_killed_unless_told_otherwise() {
    for server in private(&[]) {
        let () = server.run(&["SET", "key", "1"]).expect("a key");
        server.kill();
        server.restart();
        assert_eq!(server.run(&["DBSIZE"]), Ok(0));
    }
}

#[test]
fn a_private_server_has_the_settings_that_it_is_given() {
    for server in private(&["maxclients 17"]) {
        let setting: Vec<String> = server.run(&["CONFIG", "GET", "maxclients"]).expect("one");
        assert_eq!(setting, ["maxclients", "17"]);
        assert_eq!(
            server.run(&["CONFIG", "GET", "appendonly"]),
            Ok(["appendonly".to_owned(), "no".to_owned()])
        );
    }
}

#[test]
fn a_private_server_is_gone_when_it_was_dropped() {
    let fates: [fn(&Redis); 3] = [|_| {}, |server| server.freeze(), |server| server.kill()];
    for fate in fates {
        for server in private(&DURABLE) {
            let (directory, port) = (server.directory().to_owned(), server.port());
            fate(&server);
            assert!(directory.exists());
            drop(server);
            assert!(!directory.exists());
            TcpStream::connect(("127.0.0.1", port)).expect_err("nobody listens");
        }
    }
}

#[test]
fn a_replica_has_what_its_master_has_and_takes_over_when_it_is_promoted() {
    for master in private(&[]) {
        let () = master.run(&["SET", "before", "1"]).expect("a key");
        let replica = master.start_replica();
        assert_eq!(replica.run(&["GET", "before"]), Ok(1));
        let client = Client::open(master.url()).expect("a URL");
        let mut connection = client.get_connection().expect("a connection");
        let mut commands = redis::pipe();
        commands.cmd("SET").arg("after").arg(2).ignore();
        // It counts the replicas that have what this connection wrote.
        commands.cmd("WAIT").arg(1).arg(10_000);
        assert_eq!(commands.query(&mut connection), Ok([1]));
        let refused = replica.run::<()>(&["SET", "own", "3"]).expect_err("reads");
        assert_eq!(refused.code(), Some("READONLY"));
        assert_eq!(
            refused.kind(),
            ErrorKind::Server(redis::ServerErrorKind::ReadOnly)
        );
        master.kill();
        replica.promote();
        let () = replica.run(&["SET", "own", "3"]).expect("a master");
        assert_eq!(
            replica.run(&["MGET", "before", "after", "own"]),
            Ok((1, 2, 3))
        );
        master.restart();
        master.follow(&replica);
        assert_eq!(
            master.run(&["MGET", "before", "after", "own"]),
            Ok((1, 2, 3))
        );
    }
}

async fn connect(server: &Redis) -> Result<MultiplexedConnection, RedisError> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = Client::open(server.url())?;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}
