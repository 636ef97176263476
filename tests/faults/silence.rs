//! Connections that die without a word: no reset, no end, just no answer any more.

use std::time::Duration;

use http::StatusCode;
use tower_idempotency::{RejectionKind, store::StoreKind::Transaction};

use super::{
    Server,
    app::{App, Handler},
    pool::{CHARGE, all_idle},
    world::{World, new_account},
};
use crate::{
    network::{Outage, side_by_side, until},
    table::seen,
};

const REQUESTS: u32 = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_fall_silent_in_mid_handler_come_back_to_the_pool() {
    // So many connections would be missed on the server that tests share.
    let Some(server) = Server::start() else {
        return;
    };
    let world = World::on(&server).await;
    let handler = Handler::answering(201);
    let app = App::with(&world, Transaction, REQUESTS, handler, |layer| {
        // The store waits for 5 s, as long as the whole run may last.
        layer.with_collect_limit(Duration::from_secs(1))
    });
    fill(&app).await;
    let strikes = app.proxy.inject(Outage::Swallowed.on(CHARGE).always());
    let accounts: Vec<_> = (0..REQUESTS).map(|_| new_account()).collect();
    let charge = |account: &String| {
        let (app, account) = (app.clone(), account.clone());
        async move { app.charge(&account).await }
    };
    for answer in side_by_side(accounts.iter().map(charge)).await {
        assert_eq!(answer.rejection(), Some(RejectionKind::RunLimit));
    }
    assert_eq!(strikes.count(), accounts.len());
    assert_eq!(app.runs.count(), accounts.len());

    // New connections are in order. The old ones stay as they are, to the end of the test.
    app.proxy.heal();
    let retry = |account: &String| {
        let (app, account) = (app.clone(), account.clone());
        async move {
            // Until there is a connection again, and the server has dropped the transaction.
            let answer = until(|| async {
                let answer = app.charge(&account).await;
                (answer.status() == StatusCode::CREATED).then_some(answer)
            });
            let answer = answer.await;
            assert!(!answer.is_replay(), "{}", seen(&answer));
            assert_eq!(app.world.charges(&account).await, 1);
        }
    };
    side_by_side(accounts.iter().map(retry)).await;
    assert_eq!(app.runs.count(), 2 * accounts.len());
    app.assert_healthy().await;
}

/// Opens all connections that the pool may have.
async fn fill(app: &App) {
    let mut all = Vec::new();
    for _ in 0..app.pool.options().get_max_connections() {
        all.push(until(|| async { app.pool.acquire().await.ok() }).await);
    }
    drop(all);
    all_idle(&app.pool).await;
}
