//! The one connection of a store: lost, it is replaced at once, and nobody is told.

use std::time::Duration;

use tokio::task::block_in_place;
use tower_idempotency::store::StoreKind::Lease;

use super::{
    Server,
    app::{App, Handler},
    world::{World, new_account},
};
use crate::{
    network::{end, side_by_side, until},
    table::seen,
};

const AT_ONCE: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_lost_while_nobody_used_it_costs_no_request() {
    let Some(server) = Server::start() else {
        return;
    };
    let world = World::on(&server).await;
    let app = App::new(&world, Lease, 1, Handler::answering(201));
    app.assert_healthy().await;

    // The server closes what is idle, and so may whatever is on the way to it.
    let closed: usize = world.get(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    assert!(closed > 0);
    assert_served(&app).await;
    app.proxy.cut();
    assert_served(&app).await;
    block_in_place(|| {
        server.kill();
        server.restart();
    });
    // It knows no scripts any more.
    assert_served(&app).await;
}

/// All of some requests that come at once, over one connection.
async fn assert_served(app: &App) {
    let asked: Vec<_> = (0..AT_ONCE)
        .map(|_| app.spawn_charge(&new_account()))
        .collect();
    for asked in asked {
        let answer = end(asked).await.expect("no panic");
        assert!(seen(&answer).starts_with("201 run"), "{}", seen(&answer));
    }
    // Besides the one that asks.
    until(|| async {
        let clients: String = app.world.get(&["CLIENT", "LIST"]).await;
        (clients.lines().count() == 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_is_asked_once_for_all_who_wait_and_is_back_at_once() {
    let Some(server) = Server::start() else {
        return;
    };
    let world = World::on(&server).await;
    let app = App::new(&world, Lease, 1, Handler::answering(201));
    app.assert_healthy().await;
    app.proxy.refuse();
    let refused = (0..AT_ONCE).map(|_| {
        let app = app.clone();
        async move { seen(&app.charge(&new_account()).await) }
    });
    for answer in side_by_side(refused).await {
        assert_eq!(answer, "503 store_unavailable");
    }
    assert_eq!(app.drain.wait(Duration::from_secs(60)).await, 0);
    app.proxy.accept();
    assert_served(&app).await;
}
