//! A server that answers, but not what it was asked: what becomes of requests then, and that it takes no restart to go on.

use std::error::Error as _;

use redis::{RedisError, cmd};
use tokio::task::block_in_place;
use tower::Layer;
use tower_idempotency::{
    Drain, IdempotencyLayer, OnStoreFailure, Outcome, RejectionKind, ScopeBy, StoreErrorKind,
    store::Store,
};

use crate::{
    redis_support::*,
    servers::Redis,
    support::{
        Body, post,
        probe::{Probe, spawn_send},
        send,
    },
};

/// A state in which a server refuses what the store asks.
struct State {
    /// What it answers.
    code: &'static str,
    settings: &'static [&'static str],
    begin: fn(&Redis),
    end: fn(&Redis),
    kind: StoreErrorKind,
}

const STATES: [State; 9] = [
    State {
        code: "OOM",
        settings: &[],
        begin: |server| set(server, "maxmemory", "1"),
        end: |server| set(server, "maxmemory", "0"),
        kind: StoreErrorKind::Full,
    },
    State {
        code: "LOADING",
        settings: &[
            "enable-debug-command yes",
            "loading-process-events-interval-bytes 1024",
            "rdbcompression no",
        ],
        begin: |server| {
            for key in 0..200 {
                let key = format!("filler-{key}");
                let () = server.run(&["SET", &key, &"x".repeat(4096)]).unwrap();
            }
            set(server, "key-load-delay", "100000");
            spawn(server, &["DEBUG", "RELOAD"]);
        },
        end: |server| set(server, "key-load-delay", "0"),
        kind: StoreErrorKind::Unavailable,
    },
    State {
        code: "BUSY",
        settings: &["busy-reply-threshold 10"],
        begin: |server| spawn(server, &["EVAL", "while true do end", "0"]),
        end: |server| server.run(&["SCRIPT", "KILL"]).unwrap(),
        kind: StoreErrorKind::Unavailable,
    },
    State {
        code: "MASTERDOWN",
        settings: &["replica-serve-stale-data no"],
        begin: |server| server.run(&["REPLICAOF", "127.0.0.1", "1"]).unwrap(),
        end: Redis::promote,
        kind: StoreErrorKind::Unavailable,
    },
    State {
        code: "CLUSTERDOWN",
        settings: &["cluster-enabled yes", "cluster-require-full-coverage yes"],
        begin: |server| server.run(&["CLUSTER", "DELSLOTS", "0"]).unwrap(),
        end: |server| server.run(&["CLUSTER", "ADDSLOTS", "0"]).unwrap(),
        kind: StoreErrorKind::Unavailable,
    },
    State {
        code: "READONLY",
        settings: &[],
        begin: |server| server.run(&["REPLICAOF", "127.0.0.1", "1"]).unwrap(),
        end: Redis::promote,
        kind: StoreErrorKind::Other,
    },
    State {
        code: "NOREPLICAS",
        settings: &[],
        begin: |server| set(server, "min-replicas-to-write", "1"),
        end: |server| set(server, "min-replicas-to-write", "0"),
        kind: StoreErrorKind::Other,
    },
    State {
        code: "MISCONF",
        settings: &["dbfilename snapshot", "save 3600 1"],
        begin: |server| {
            // It can't be written over a directory.
            std::fs::create_dir(server.directory().join("snapshot")).unwrap();
            let _begun = server.run::<()>(&["BGSAVE"]);
        },
        end: |server| set(server, "stop-writes-on-bgsave-error", "no"),
        kind: StoreErrorKind::Other,
    },
    State {
        code: "NOPERM",
        settings: &[],
        begin: |server| {
            server
                .run(&["ACL", "SETUSER", "default", "-evalsha", "-eval"])
                .unwrap()
        },
        end: |server| server.run(&["ACL", "SETUSER", "default", "+@all"]).unwrap(),
        kind: StoreErrorKind::Other,
    },
];

fn set(server: &Redis, name: &str, value: &str) {
    server.run::<()>(&["CONFIG", "SET", name, value]).unwrap();
}

/// Has the server do this for as long as it takes.
fn spawn(server: &Redis, command: &'static [&'static str]) {
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    std::thread::spawn(move || cmd(command[0]).arg(&command[1..]).exec(&mut connection));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_refuses_is_told_and_it_goes_on_as_soon_as_the_server_does() {
    for state in STATES {
        let Some(server) = block_in_place(|| Redis::start_with(state.settings)) else {
            return;
        };
        if state.code == "CLUSTERDOWN" {
            block_in_place(|| serve_all_slots(&server));
        }
        in_state(&server, &state).await;
    }
}

async fn in_state(server: &Redis, state: &State) {
    let (drain, probe) = (Drain::new(), Probe::new().shut());
    let layer = |store| IdempotencyLayer::new(store, ScopeBy::single_tenant());
    let store = store_at(server.url());
    let service = layer(store.clone())
        .with_drain(drain.clone())
        .layer(probe.service::<Body>());
    let unprotected = layer(store.clone())
        .with_on_store_failure(OnStoreFailure::RunUnprotected)
        .layer(Probe::new().service::<Body>());
    let running = spawn_send(&service, post("running", "1"));
    probe.started(1).await;
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    block_in_place(|| (state.begin)(server));

    // Its own code, whatever command it was.
    let reserve = || async {
        let (key, terms) = (fresh_key(), terms());
        store.reserve(&key, &fingerprint(1), &terms).await.err()
    };
    until(|| async { reserve().await.is_some() }).await;
    let refused = reserve().await.unwrap();
    assert_eq!(refused.kind(), state.kind, "{refused:?}");
    let told = refused.source().and_then(|source| source.downcast_ref());
    assert_eq!(
        told.and_then(RedisError::code),
        Some(state.code),
        "{refused:?}"
    );
    let answer = send(&service, post("new", "1")).await;
    let expected = match state.kind {
        StoreErrorKind::Full => RejectionKind::StoreFull,
        _ => RejectionKind::StoreUnavailable,
    };
    assert_eq!(answer.rejection(), Some(expected), "{}", state.code);
    // Only where the server is as good as away.
    let ran = send(&unprotected, post("unprotected", "1")).await;
    let expected = match state.kind {
        StoreErrorKind::Unavailable => Outcome::Unprotected,
        _ => Outcome::Refused(expected),
    };
    let outcome = ran.head.extensions.get::<Outcome>();
    assert_eq!(outcome, Some(&expected), "{}", state.code);
    let renewed = store.renew(&claimed, LEASE).await;
    match state.kind {
        StoreErrorKind::Full => renewed.unwrap(),
        kind => assert_kind(renewed, kind),
    }
    probe.open();
    let answer = running.await.unwrap();
    assert_eq!(
        answer.text(),
        "run 1",
        "{}: the handler's answer is the caller's",
        state.code
    );

    block_in_place(|| (state.end)(server));
    until(|| async { send(&service, post("new", "1")).await.text() == "run 2" }).await;
    until(|| async { drain.running() == 0 }).await;
    let again = send(&service, post("running", "1")).await;
    assert!(again.is_replay(), "{}: it was told again", state.code);
    store.renew(&claimed, LEASE).await.unwrap();
    assert_eq!(probe.runs(), 2, "{}", state.code);
}

/// A cluster of one node.
fn serve_all_slots(server: &Redis) {
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let slots = slots.iter().map(String::as_str);
    let command: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect();
    server.run::<()>(&command).unwrap();
    let serves = || {
        let info: String = server.run(&["CLUSTER", "INFO"]).unwrap();
        info.contains("cluster_state:ok")
    };
    while !serves() {
        std::thread::yield_now();
    }
}
