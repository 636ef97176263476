//! The store's own connection: made anew when it is lost, stops answering, or leads to what is a replica by now.

use std::time::Duration;

use tokio::{net::TcpListener, task::block_in_place, time::timeout};
use tower_idempotency::{
    StoreErrorKind,
    store::{Reservation, Store},
};

use crate::{
    redis_support::*,
    relay::Relay,
    servers::{DURABLE, Proxy, Redis, redis},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_of_the_server_the_first_call_is_answered() {
    let Some(server) = block_in_place(|| Redis::start_with(&DURABLE)) else {
        return;
    };
    let store = store_at(server.url());
    let (done, running) = (fresh_key(), fresh_key());
    let claimed = claim(&store, &done, &terms()).await;
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    let claimed = claim(&store, &running, &terms()).await;

    block_in_place(|| server.kill());
    assert_kind(store.ping().await, StoreErrorKind::Unavailable);
    block_in_place(|| server.restart());

    assert_replays(&reserve(&store, &done).await, "done");
    assert!(matches!(
        reserve(&store, &running).await,
        Reservation::InFlight { .. }
    ));
    block_in_place(|| {
        server.kill();
        server.restart();
    });
    store
        .complete(&claimed, &response("late"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &running).await, "late");
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_costs_no_error() {
    let Some(server) = redis() else { return };
    let proxy = Proxy::start(server.url());
    let store = store_at(proxy.url());
    for _ in 0..10 {
        claim(&store, &fresh_key(), &terms()).await;
        proxy.cut();
    }
}

#[tokio::test]
async fn while_the_server_is_away_each_call_fails_and_the_next_one_after_it_is_back_does_not() {
    let Some(server) = redis() else { return };
    let proxy = Proxy::start(server.url());
    let store = store_at(proxy.url());
    for round in 0..5 {
        proxy.refuse();
        proxy.cut();
        let calls = (0..50).map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.ping().await })
        });
        for call in calls.collect::<Vec<_>>() {
            assert_kind(call.await.unwrap(), StoreErrorKind::Unavailable);
        }
        proxy.accept();
        store
            .ping()
            .await
            .unwrap_or_else(|error| panic!("round {round}: {error:?}"));
    }
}

#[tokio::test]
async fn many_first_calls_share_one_connection() {
    let Some(server) = Redis::start() else { return };
    let store = store_at(server.url());
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { claim(&store, &fresh_key(), &terms()).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    let stats: String = server.run(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    // The other one is that of this question.
    assert_eq!(stats.lines().count(), 2, "{stats}");
}

#[tokio::test]
async fn those_who_wait_for_a_server_that_is_away_share_an_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = store_at(&format!("redis://{}", listener.local_addr().unwrap()));
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.ping().await })
        })
        .collect();
    let mut attempts = 0;
    let refuse = async {
        loop {
            drop(listener.accept().await.unwrap());
            attempts += 1;
        }
    };
    let all_failed = async {
        for call in calls {
            assert_kind(call.await.unwrap(), StoreErrorKind::Unavailable);
        }
    };
    tokio::select! {
        never = refuse => never,
        () = all_failed => {}
    }
    // Of the first who came, and of one of those who came after that had begun.
    assert!(attempts < 10, "{attempts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_waited_for_and_what_it_was_told_holds() {
    let Some(server) = block_in_place(Redis::start) else {
        return;
    };
    let store = store_at(server.url());
    let (key, other) = (fresh_key(), fresh_key());
    let claimed = claim(&store, &key, &terms()).await;
    block_in_place(|| server.freeze());
    // As the layer does: the wait ends, the call doesn't.
    let call = {
        let (store, claimed) = (store.clone(), claimed.clone());
        tokio::spawn(async move { store.complete(&claimed, &response("done"), RETENTION).await })
    };
    let reserve_other = {
        let store = store.clone();
        tokio::spawn(async move { store.reserve(&other, &fingerprint(1), &terms()).await })
    };
    assert!(
        timeout(Duration::from_millis(300), store.ping())
            .await
            .is_err()
    );
    server.thaw();
    call.await.unwrap().unwrap();
    let late = reserve_other.await.unwrap().unwrap();
    assert!(matches!(late, Reservation::Acquired(_)));
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_leads_to_another_master_is_followed() {
    let Some(old) = block_in_place(Redis::start) else {
        return;
    };
    let Some(new) = block_in_place(Redis::start) else {
        return;
    };
    block_in_place(|| new.follow(&old));
    let relay = Relay::start(old.port()).await;
    let store = store_at(&relay.url);
    let key = fresh_key();
    let claimed = claim(&store, &key, &terms()).await;
    block_in_place(|| new.catch_up_with(&old));

    // The connection to what was the master stays open, and answers.
    block_in_place(|| {
        new.promote();
        old.follow(&new);
    });
    let before = connections_made(&old);
    for _ in 0..200 {
        assert_kind(store.renew(&claimed, LEASE).await, StoreErrorKind::Other);
    }
    // One a second, and those that ask here.
    let made = connections_made(&old) - before;
    assert!(made < 100, "{made}");
    relay.lead_to(new.port());

    // Another connection is made once a second only.
    until(|| async { store.renew(&claimed, LEASE).await.is_ok() }).await;
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
    assert!(!stored(&new, &key).is_empty());
}

/// How many this server has ever had.
fn connections_made(server: &Redis) -> usize {
    let told: String = server.run(&["INFO", "stats"]).unwrap();
    let mut lines = told.lines();
    let made = lines.find_map(|line| line.strip_prefix("total_connections_received:"));
    made.unwrap().parse().unwrap()
}

#[tokio::test]
async fn passwords_are_not_shown() {
    let store = store_at("redis://user:topsecret@127.0.0.1:1");
    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let shown = format!("{store:?} {error:?} {error}");
    assert!(!shown.contains("topsecret"), "{shown}");
}

#[tokio::test]
async fn a_wrong_password_is_no_outage() {
    let Some(server) = redis() else { return };
    let user = ["ACL", "SETUSER", "guarded", "on", ">right", "~*", "+@all"];
    server.run::<()>(&user).unwrap();
    let with = |password: &str| {
        let url = server
            .url()
            .replace("redis://", &format!("redis://guarded:{password}@"));
        store_at(&url)
    };
    assert_kind(with("wrong").ping().await, StoreErrorKind::Other);
    with("right").ping().await.unwrap();
}

/// The one connection that it takes is another's.
#[tokio::test]
async fn a_server_that_takes_no_more_connections_is_unavailable() {
    let Some(server) = Redis::start() else {
        return;
    };
    let mut other = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    let mut limit = |clients: &str| {
        let mut command = redis::cmd("CONFIG");
        command
            .arg("SET")
            .arg("maxclients")
            .arg(clients)
            .query::<()>(&mut other)
    };
    limit("1").unwrap();
    let (store, key) = (store_at(server.url()), fresh_key());
    assert_kind(store.ping().await, StoreErrorKind::Unavailable);
    let refused = store.reserve(&key, &fingerprint(1), &terms()).await;
    assert_kind(refused, StoreErrorKind::Unavailable);
    limit("100").unwrap();
    claim(&store, &key, &terms()).await;
}
