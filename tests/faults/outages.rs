//! A server that stands still, and one that dies and comes back.

use std::time::Duration;

use tokio::task::block_in_place;
use tower_idempotency::store::StoreKind::{self, Lease, Transaction};

use super::{
    Server,
    app::{App, CHARGE, Handler, all_idle},
    statement::{COMMIT, SETTLE},
    world::{World, new_account},
};
use crate::{
    network::{Outage, end},
    support::handler::Gate,
    table::seen,
};

const KINDS: [StoreKind; 2] = [Transaction, Lease];

fn app(world: &World, kind: StoreKind) -> App {
    App::new(world, kind, 2, Handler::answering(201))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_has_charged_once_when_it_goes_on() {
    let Some(server) = Server::start() else {
        return;
    };
    let world = World::on(&server).await;
    for kind in KINDS {
        let (app, account) = (app(&world, kind), new_account());
        app.assert_healthy().await;
        all_idle(&app.pool).await;
        let runs = app.runs.count();
        block_in_place(|| server.freeze());
        let answer = seen(&app.charge(&account).await);
        assert_eq!(answer, "503 store_unavailable", "{kind:?}");
        assert_eq!(app.runs.count(), runs);
        server.thaw();
        let retry = app.retry(&account).await;
        assert!(!retry.is_replay(), "{}", seen(&retry));
        assert_eq!(
            (retry.status(), app.runs.count()),
            (http::StatusCode::CREATED, runs + 1)
        );
        assert_eq!(world.charges(&account).await, 1);
        app.assert_healthy().await;
    }
    for kind in KINDS {
        let (app, account) = (app(&world, kind), new_account());
        let (statement, answer) = match kind {
            Transaction => (COMMIT, "503 outcome_pending"),
            _ => (SETTLE, "201 run 1"),
        };
        let strikes = app.proxy.inject(Outage::Hangs.on(statement));
        let asked = app.spawn_charge(&account);
        strikes.struck(1).await;
        block_in_place(|| server.freeze());
        app.proxy.resume();
        assert_eq!(seen(&end(asked).await.expect("no panic")), answer);
        server.thaw();
        let retry = seen(&app.retry(&account).await);
        assert_eq!(retry, "201 run 1, replayed", "{kind:?}");
        assert_eq!(world.charges(&account).await, 1);
        app.assert_healthy().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_in_mid_run_has_charged_once_when_it_is_back() {
    let Some(server) = Server::start() else {
        return;
    };
    let world = World::on(&server).await;
    let restart = || {
        block_in_place(|| {
            server.kill();
            server.restart();
        });
    };
    // A run that has charged, and not been completed.
    for (kind, first, retry) in [
        (Transaction, "503 not_committed", "201 run 2"),
        (Lease, "201 run 1", "201 run 1, replayed"),
    ] {
        let (gate, account) = (Gate::closed(), new_account());
        let handler = Handler {
            after: Some(gate.clone()),
            ..Handler::answering(201)
        };
        let app = App::with(&world, kind, 2, handler, |layer| {
            layer.with_run_limit(Duration::from_secs(60))
        });
        let asked = app.spawn_charge(&account);
        end(gate.reached()).await;
        restart();
        gate.open();
        assert_eq!(seen(&end(asked).await.expect("no panic")), first);
        assert_eq!(seen(&app.retry(&account).await), retry, "{kind:?}");
        assert_eq!(world.charges(&account).await, 1);
        app.assert_healthy().await;
    }
    // A transaction, further on each time.
    for (outage, statement, first, retry) in [
        (Outage::Hangs, CHARGE, "500 run 1 failed", "201 run 2"),
        (Outage::Hangs, COMMIT, "503 not_committed", "201 run 2"),
        (
            Outage::Swallowed,
            COMMIT,
            "201 run 1",
            "201 run 1, replayed",
        ),
    ] {
        let (account, handler) = (new_account(), Handler::answering(201));
        let app = App::with(&world, Transaction, 2, handler, |layer| {
            layer
                .with_run_limit(Duration::from_secs(60))
                .with_store_call_limit(Duration::from_secs(60))
        });
        let strikes = app.proxy.inject(outage.on(statement));
        let asked = app.spawn_charge(&account);
        strikes.struck(1).await;
        restart();
        app.proxy.cut();
        assert_eq!(seen(&end(asked).await.expect("no panic")), first);
        let retried = seen(&app.retry(&account).await);
        assert_eq!(retried, retry, "{outage:?} of {statement}");
        assert_eq!(world.charges(&account).await, 1);
        app.assert_healthy().await;
    }
}
