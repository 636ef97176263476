//! What the store rests on: how Redis behaves. One of these failing means that the store must be looked at again.

use redis::{Client, Connection, RedisError, RedisResult, Script, cmd};
use uuid::Uuid;

use crate::servers::{Redis, redis, valkey};

/// The first write decides whether a full server executes it.
const SETS: &str = "return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])";
const EXTENDS_AND_SETS: &str = "
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])";

/// Of each kind that there is, with settings.
fn private(settings: &[&str]) -> impl Iterator<Item = Redis> {
    let servers = [Redis::start_with(settings), Redis::start_valkey(settings)];
    servers.into_iter().flatten()
}

fn shared() -> impl Iterator<Item = &'static Redis> {
    [redis(), valkey()].into_iter().flatten()
}

fn connect(server: &Redis) -> Connection {
    let client = Client::open(server.url()).unwrap();
    client.get_connection().unwrap()
}

fn eval(server: &Redis, script: &str, key: &str) -> RedisResult<String> {
    let script = Script::new(script);
    let mut call = script.key(key);
    call.arg("value").arg(60_000).invoke(&mut connect(server))
}

/// A key that a test has for itself.
fn key() -> String {
    Uuid::new_v4().to_string()
}

#[test]
fn a_full_server_still_extends_removes_and_sets_after_an_extension() {
    for server in private(&["maxmemory-policy noeviction"]) {
        for key in ["claimed", "removed"] {
            let () = server.run(&["SET", key, "nonce", "PX", "60000"]).unwrap();
        }
        // It has more already.
        let () = server.run(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
        let refused = |result: RedisResult<String>| {
            assert_refused(&server, "OOM", &result.unwrap_err());
        };
        refused(server.run(&["SET", "new", "value", "PX", "60000"]));
        refused(server.run(&["SET", "claimed", "value", "PX", "60000"]));
        refused(server.run(&["SET", "claimed", "nonce", "XX", "KEEPTTL"]));
        refused(eval(&server, SETS, "new"));
        refused(eval(&server, SETS, "claimed"));
        assert_eq!(server.run(&["GET", "claimed"]), Ok("nonce".to_owned()));

        assert_eq!(server.run(&["PEXPIRE", "claimed", "90000"]), Ok(1));
        assert_eq!(server.run(&["DEL", "removed"]), Ok(1));
        eval(&server, EXTENDS_AND_SETS, "claimed").unwrap();
        assert_eq!(server.run(&["GET", "claimed"]), Ok("value".to_owned()));
        // That a command writes counts, not what it wrote: this key was never there.
        eval(&server, EXTENDS_AND_SETS, "new").unwrap();
        assert_eq!(server.run(&["GET", "new"]), Ok("value".to_owned()));
    }
}

#[test]
fn a_set_without_a_lifetime_ends_the_one_that_the_key_had() {
    for server in shared() {
        let key = key();
        let () = server.run(&["SET", &key, "1", "PX", "60000"]).unwrap();
        let () = server.run(&["SET", &key, "2", "KEEPTTL"]).unwrap();
        let left: i64 = server.run(&["PTTL", &key]).unwrap();
        assert!((1..=60_000).contains(&left), "{left}");
        let () = server.run(&["SET", &key, "3"]).unwrap();
        assert_eq!(server.run(&["PTTL", &key]), Ok(-1));
    }
}

#[test]
fn a_flush_and_a_restart_forget_the_scripts() {
    for server in private(&[]) {
        let forget: [fn(&Redis); 2] = [
            |server| server.run(&["SCRIPT", "FLUSH"]).unwrap(),
            |server| {
                server.kill();
                server.restart();
            },
        ];
        for forget in forget {
            let hash: String = server.run(&["SCRIPT", "LOAD", "return 1"]).unwrap();
            assert_eq!(server.run(&["EVALSHA", &hash, "0"]), Ok(1));
            forget(&server);
            let lost = server.run::<i32>(&["EVALSHA", &hash, "0"]).unwrap_err();
            assert_eq!(lost.code(), Some("NOSCRIPT"), "{lost}");
        }
    }
}

/// Redis 7.2 and Valkey wait for the connection's last write, older ones for its last command. A settlement that is
/// repeated on another connection must therefore write again: what it finds done may be nowhere else.
#[test]
fn wait_after_a_command_that_wrote_nothing_may_count_replicas_that_lag() {
    for master in private(&[]) {
        let replica = master.start_replica();
        replica.freeze();
        let acknowledged = |connection: &mut Connection, command: &[&str]| -> i32 {
            let mut commands = redis::pipe();
            commands.cmd(command[0]).arg(&command[1..]).ignore();
            commands.cmd("WAIT").arg(1).arg(50);
            let [replicas] = commands.query(connection).unwrap();
            replicas
        };
        let mut wrote = connect(&master);
        assert_eq!(acknowledged(&mut wrote, &["SET", "key", "1"]), 0);
        let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return 'is so already' end";
        let mut new = connect(&master);
        for wrote_nothing in [
            &["GET", "key"][..],
            &["EVAL", script, "1", "key", "1"],
            &["PEXPIRE", "nothing", "60000"],
        ] {
            let replicas = acknowledged(&mut new, wrote_nothing);
            assert_eq!(
                replicas,
                i32::from(version(&master) >= [7, 2]),
                "{wrote_nothing:?}"
            );
            // The one that wrote still knows.
            assert_eq!(acknowledged(&mut wrote, wrote_nothing), 0);
        }
        // A write that changes nothing but the lifetime is one.
        assert_eq!(acknowledged(&mut new, &["PEXPIRE", "key", "60000"]), 0);
        replica.thaw();
        let all: i32 = cmd("WAIT").arg(1).arg(10_000).query(&mut new).unwrap();
        assert_eq!(all, 1);
        assert_eq!(replica.run(&["GET", "key"]), Ok(1));
    }
}

/// Before 7.0 the error of a script that failed has the code of what failed only in its text.
fn assert_refused(server: &Redis, code: &str, error: &RedisError) {
    let in_text = error
        .detail()
        .unwrap_or_default()
        .contains(&format!(": -{code} "));
    let refused = error.code() == Some(code);
    assert!(refused || version(server) < [7, 0] && in_text, "{error}");
}

fn version(server: &Redis) -> [u32; 2] {
    let info: String = server.run(&["INFO", "server"]).unwrap();
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"));
    let mut numbers = version
        .unwrap()
        .split('.')
        .map(|number| number.parse::<u32>());
    [(); 2].map(|()| numbers.next().unwrap().unwrap())
}

#[test]
fn a_replica_refuses_writes_by_a_code_of_its_own_in_scripts_too() {
    for master in private(&[]) {
        let replica = master.start_replica();
        let set = replica.run(&["SET", "key", "1"]);
        for refused in [set, eval(&replica, SETS, "key").map(drop)] {
            assert_refused(&replica, "READONLY", &refused.unwrap_err());
        }
    }
}
