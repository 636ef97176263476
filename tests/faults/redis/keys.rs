//! What a store leaves on the server, and what it tells it of time.

use std::time::Duration;

use http::StatusCode;
use tokio::task::JoinSet;
use tower_idempotency::store::StoreKind::Lease;

use super::{
    Server,
    app::{App, Handler, LEASE},
    statement::{release, renew, reserve, settle},
    world::{World, new_account},
};
use crate::{
    network::{end, until},
    support::handler::{Gate, answering, response},
    table::seen,
};

const CALLERS: usize = 20;
const REQUESTS: usize = 50;
const RETENTION: Duration = Duration::from_secs(3);

/// No counter of fences, no marker, no index: what a record needs is in it, and expires with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_keys_that_expired_although_nobody_asks_for_them() {
    let Some(server) = Server::start() else {
        return;
    };
    let world = World::on(&server).await;
    let () = world.get(&["FLUSHDB"]).await;
    let app = App::around(
        &world,
        Lease,
        1,
        |layer| {
            let layer = layer.with_lease(RETENTION).with_retention(RETENTION);
            layer.with_store_call_limit(RETENTION / 3)
        },
        |runs, _| {
            answering(runs, |run, _, _| {
                let done = [
                    StatusCode::CREATED,
                    StatusCode::NOT_FOUND,
                    StatusCode::BAD_GATEWAY,
                ];
                response(done[run % done.len()], "")
            })
        },
    );
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let app = app.clone();
        callers.spawn(async move {
            for _ in 0..REQUESTS {
                assert!(app.charge(&new_account()).await.rejection().is_none());
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.expect("no panic");
    }
    let keys = async || world.get::<usize>(&["DBSIZE"]).await;
    // One of three was released.
    let kept = keys().await;
    assert!(kept <= CALLERS * REQUESTS * 2 / 3 + 1, "{kept}");
    until(|| async { (keys().await == 0).then_some(()) }).await;
}

/// So that the server's clock alone counts, however those of its clients go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_time_the_server_is_told_durations_only() {
    let Some(world) = World::shared().await else {
        return;
    };
    let retention = LEASE * 10;
    let mut told = Vec::new();
    for status in [201, 404, 502] {
        let gate = Gate::closed();
        let handler = Handler {
            before: Some(gate.clone()),
            ..Handler::answering(status)
        };
        let app = App::with(&world, Lease, 1, handler, |layer| {
            layer.with_retention(retention)
        });
        let asked = app.spawn_charge(&new_account());
        until(|| async { (app.proxy.count(renew()) > 0).then_some(()) }).await;
        gate.open();
        let answer = end(asked).await.expect("no panic");
        assert_eq!(seen(&answer), format!("{status} run 1"));
        told.extend(app.proxy.statements());
    }
    for call in [reserve(), renew(), settle(), release()] {
        assert!(told.iter().any(|told| told.contains(call)));
    }
    let numbers = told.iter().flat_map(|told| told.split(' '));
    let numbers: Vec<u128> = numbers.filter_map(|word| word.parse().ok()).collect();
    for duration in [LEASE, retention] {
        assert!(numbers.contains(&duration.as_millis()), "{numbers:?}");
    }
    let longest = numbers.iter().max().expect("numbers");
    assert!(*longest <= (LEASE + retention).as_millis(), "{numbers:?}");
}
