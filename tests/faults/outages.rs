//! A server that stands still, and one that dies and comes back.

use std::time::Duration;

use tokio::task::block_in_place;
use tower_idempotency::store::StoreKind::{Lease, Transaction};

use super::{
    KINDS,
    app::{App, Handler},
    pool::{CHARGE, all_idle},
    start_server,
    statement::{COMMIT, settle},
    world::{World, new_account},
};
use crate::{
    network::{Outage, end},
    support::handler::Gate,
    table::seen,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_has_charged_once_when_it_goes_on() {
    let Some(server) = start_server() else {
        return;
    };
    let world = World::on(&server).await;
    // From before a reservation.
    let runs: Vec<_> = KINDS
        .iter()
        .map(|kind| {
            let app = App::new(&world, *kind, 2, Handler::answering(201));
            (app, new_account())
        })
        .collect();
    for (app, _) in &runs {
        app.assert_healthy().await;
        all_idle(&app.pool).await;
    }
    block_in_place(|| server.freeze());
    let asked = runs.iter().map(|(app, account)| app.spawn_charge(account));
    let asked: Vec<_> = asked.collect();
    for asked in asked {
        let answer = end(asked).await.expect("no panic");
        assert_eq!(seen(&answer), "503 store_unavailable");
    }
    server.thaw();
    for (app, account) in &runs {
        // The first run was that of another request.
        assert_eq!(seen(&app.retry(account).await), "201 run 2");
        assert_eq!((app.runs.count(), world.charges(account).await), (2, 1));
        app.assert_healthy().await;
    }

    // From before a completion.
    let cases = [
        (Transaction, COMMIT, "503 outcome_pending"),
        (Lease, settle(), "201 run 1"),
    ];
    let cases = cases.into_iter().filter(|(kind, ..)| KINDS.contains(kind));
    let runs = cases.map(|(kind, statement, answer)| {
        let app = App::new(&world, kind, 2, Handler::answering(201));
        let strikes = app.proxy.inject(Outage::Hangs.on(statement));
        let account = new_account();
        let asked = app.spawn_charge(&account);
        (app, strikes, account, asked, answer)
    });
    let runs: Vec<_> = runs.collect();
    for (_, strikes, ..) in &runs {
        strikes.struck(1).await;
    }
    block_in_place(|| server.freeze());
    for (app, ..) in &runs {
        app.proxy.resume();
    }
    let mut answered = Vec::new();
    for (app, _, account, asked, answer) in runs {
        let told = seen(&end(asked).await.expect("no panic"));
        assert_eq!(told, answer);
        answered.push((app, account));
    }
    server.thaw();
    for (app, account) in answered {
        let retry = seen(&app.retry(&account).await);
        assert_eq!(retry, "201 run 1, replayed");
        assert_eq!((app.runs.count(), world.charges(&account).await), (1, 1));
        app.assert_healthy().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_in_mid_run_has_charged_once_when_it_is_back() {
    let Some(server) = start_server() else {
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
    ]
    .into_iter()
    .filter(|(kind, ..)| KINDS.contains(kind))
    {
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
    ]
    .into_iter()
    .filter(|_| KINDS.contains(&Transaction))
    {
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
