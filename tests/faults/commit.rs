//! A COMMIT whose answer is missing: what the layer tells is true, whenever the truth comes out.

use std::time::Duration;

use tower_idempotency::{RejectionKind, store::StoreKind::Transaction};

use super::{
    app::{App, Handler},
    statement::{COMMIT, RECORD},
    world::{World, new_account},
};
use crate::{
    network::{Outage, end, side_by_side, until},
    support::faulty::Call,
    table::{recorded, seen},
};

fn app(world: &World, size: u32) -> App {
    App::new(world, Transaction, size, Handler::answering(201))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_is_enough_to_find_out_what_became_of_a_commit() {
    let Some(world) = World::shared().await else {
        return;
    };
    let cases = [
        (Outage::CutAfter, "201 run 1", "201 run 1, replayed"),
        (Outage::CutBefore, "503 not_committed", "201 run 2"),
        (
            Outage::Swallowed,
            "503 outcome_pending",
            "201 run 1, replayed",
        ),
        (Outage::Hangs, "503 outcome_pending", "201 run 1, replayed"),
        (Outage::Refused, "503 outcome_pending", "201 run 2"),
    ];
    side_by_side(cases.map(|(outage, first, retry)| {
        let (world, app, account) = (world.clone(), app(&world, 1), new_account());
        async move {
            let strikes = app.proxy.inject(outage.on(COMMIT));
            let asked = app.spawn_charge(&account);
            strikes.struck(1).await;
            outage.struck(&app.proxy);
            let answer = end(asked).await.expect("no panic");
            assert_eq!(seen(&answer), first, "{outage:?}");
            outage.end(&app.proxy, &strikes).await;
            assert_eq!(seen(&app.retry(&account).await), retry, "{outage:?}");
            assert_eq!(world.charges(&account).await, 1, "{outage:?}");
            app.assert_healthy().await;
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_while_the_layer_asks_again_is_the_clients() {
    let Some(world) = World::shared().await else {
        return;
    };
    side_by_side([Outage::Swallowed, Outage::Hangs].map(|outage| {
        let (world, app, account) = (world.clone(), app(&world, 2), new_account());
        async move {
            let strikes = app.proxy.inject(outage.on(COMMIT));
            let asked = app.spawn_charge(&account);
            // The first call ran into its limit.
            end(app.store.reached(Call::Complete, 2)).await;
            outage.end(&app.proxy, &strikes).await;
            let answer = end(asked).await.expect("no panic");
            assert_eq!(seen(&answer), "201 run 1", "{outage:?}");
            let retry = app.charge(&account).await;
            assert_eq!(seen(&retry), "201 run 1, replayed", "{outage:?}");
            assert_eq!(world.charges(&account).await, 1, "{outage:?}");
            app.assert_healthy().await;
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_pending_is_decided_also_if_the_connection_never_comes_back() {
    let Some(world) = World::shared().await else {
        return;
    };
    let cases = [
        (Outage::Hangs, RECORD, "none", "201 run 2"),
        (Outage::Swallowed, RECORD, "none", "201 run 2"),
        (Outage::Hangs, COMMIT, "none", "201 run 2"),
        (Outage::Swallowed, COMMIT, "201", "201 run 1, replayed"),
    ];
    side_by_side(cases.map(|(outage, statement, record, retry)| {
        let (world, app, account) = (world.clone(), app(&world, 2), new_account());
        async move {
            app.proxy.inject(outage.on(statement));
            let answer = app.charge(&account).await;
            assert_eq!(answer.rejection(), Some(RejectionKind::OutcomePending));
            let found = recorded(world.record(Transaction, &account).await);
            assert_eq!(found, record, "{outage:?} of {statement}");
            app.proxy.cut();
            let retried = seen(&app.retry(&account).await);
            assert_eq!(retried, retry, "{outage:?} of {statement}");
            assert_eq!(world.charges(&account).await, 1);
            app.assert_healthy().await;
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_runs_nothing_while_a_commit_is_on_its_way() {
    let Some(world) = World::shared().await else {
        return;
    };
    for (outage, told) in [
        (Outage::Hangs, "409 in_flight"),
        (Outage::Swallowed, "201 run 1, replayed"),
    ] {
        let (first, other) = (app(&world, 1), app(&world, 1));
        let account = new_account();
        let strikes = first.proxy.inject(outage.on(COMMIT));
        let asked = first.spawn_charge(&account);
        strikes.struck(1).await;
        assert_eq!(seen(&other.charge(&account).await), told, "{outage:?}");
        outage.end(&first.proxy, &strikes).await;
        assert_eq!(seen(&end(asked).await.expect("no panic")), "201 run 1");
        let retry = seen(&other.retry(&account).await);
        assert_eq!(retry, "201 run 1, replayed", "{outage:?}");
        assert_eq!((other.runs.count(), world.charges(&account).await), (0, 1));
        first.assert_healthy().await;
        other.assert_healthy().await;
    }
}

/// The server still has the connection, and what was sent on it may arrive at any time. By then it has dropped the transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_was_given_up_has_no_effect_beside_that_of_a_retry() {
    let Some(world) = World::shared().await else {
        return;
    };
    let cases = [
        (Outage::Hangs, "201 run 2"),
        (Outage::Swallowed, "201 run 1, replayed"),
    ];
    side_by_side(cases.map(|(outage, meanwhile)| {
        let (world, account) = (world.clone(), new_account());
        let app = App::with(&world, Transaction, 1, Handler::answering(201), |layer| {
            // The store waits for 5 s, as long as the whole run may last.
            layer.with_collect_limit(Duration::from_secs(1))
        });
        async move {
            let strikes = app.proxy.inject(outage.on(COMMIT));
            let pending = app.charge(&account).await;
            assert_eq!(pending.rejection(), Some(RejectionKind::OutcomePending));
            // The only connection was closed, or nobody would get another one.
            until(|| async { app.pool.acquire().await.ok() }).await;
            let retry = seen(&app.retry(&account).await);
            assert_eq!(retry, meanwhile, "{outage:?}");
            let runs = app.runs.count();
            outage.end(&app.proxy, &strikes).await;
            assert!(app.charge(&account).await.is_replay());
            assert_eq!(app.runs.count(), runs, "{outage:?}");
            assert_eq!(world.charges(&account).await, 1, "{outage:?}");
            app.assert_healthy().await;
        }
    }))
    .await;
}
