//! The tables name statements by parts of their texts. A part that no statement contains any more, or another one besides, would
//! empty them.

use std::collections::BTreeSet;

use tower_idempotency::store::StoreKind::{Lease, Transaction};

use super::{
    app::{App, Handler},
    pool::{CHARGE, all_idle},
    statement::{
        COMMIT, LOOKED_UP, OPENING, OPENING_2, RECORD, REPLAY_2, ROLLBACK, UNDO, VERIFICATION,
        release, renew, reserve, settle,
    },
    world::{World, new_account},
};
use crate::{
    network::{Outage, end, until},
    support::handler::Gate,
    table::seen,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_part_of_a_statement_names_one_of_a_request() {
    let Some(world) = World::shared().await else {
        return;
    };
    let completed = transaction(&world, 201, None).await;
    for part in [OPENING, OPENING_2, CHARGE, RECORD, COMMIT] {
        assert_names_one(&completed, part);
    }
    for status in [422, 502] {
        let undone = transaction(&world, status, None).await;
        assert_names_one(&undone, UNDO);
        if !ROLLBACK.is_empty() {
            // The undo is the first that contains it, which the table lets pass.
            assert_eq!(named(&undone, ROLLBACK).len(), 2, "{undone:#?}");
        }
    }
    let replayed = replay(&world).await;
    for part in [OPENING, REPLAY_2] {
        assert_names_one(&replayed, part);
    }
    for (lost, part) in [
        (Outage::CutBefore, VERIFICATION),
        (Outage::CutAfter, LOOKED_UP),
    ] {
        let verified = transaction(&world, 201, Some(lost)).await;
        assert_names_one(&verified, part);
    }

    let renewed = lease(&world, 201).await;
    for part in [reserve(), renew(), settle()] {
        assert_names_one(&renewed, part);
    }
    let released = lease(&world, 404).await;
    assert_names_one(&released, release());
    let abandoned = lease(&world, 502).await;
    assert_names_one(&abandoned, settle());
}

/// The statements of a request, of which the COMMIT may be lost.
async fn transaction(world: &World, status: u16, lost: Option<Outage>) -> Vec<String> {
    let app = App::new(world, Transaction, 2, Handler::answering(status));
    let strikes = lost.map(|lost| app.proxy.inject(lost.on(COMMIT)));
    drop(app.charge(&new_account()).await);
    if let Some(strikes) = strikes {
        strikes.struck(1).await;
    }
    all_idle(&app.pool).await;
    statements(&app)
}

async fn replay(world: &World) -> Vec<String> {
    let (app, account) = (
        App::new(world, Transaction, 2, Handler::answering(201)),
        new_account(),
    );
    drop(app.charge(&account).await);
    all_idle(&app.pool).await;
    let before = app.proxy.statements().len();
    assert_eq!(seen(&app.charge(&account).await), "201 run 1, replayed");
    all_idle(&app.pool).await;
    statements(&app).split_off(before)
}

/// The statements of a request that takes until its lease is renewed.
async fn lease(world: &World, status: u16) -> Vec<String> {
    let gate = Gate::closed();
    let handler = Handler {
        before: Some(gate.clone()),
        ..Handler::answering(status)
    };
    let app = App::new(world, Lease, 2, handler);
    let asked = app.spawn_charge(&new_account());
    until(|| async { (app.proxy.count(renew()) > 0).then_some(()) }).await;
    gate.open();
    drop(end(asked).await.expect("no panic"));
    all_idle(&app.pool).await;
    statements(&app)
}

fn statements(app: &App) -> Vec<String> {
    let sent = app.proxy.statements();
    sent.iter().map(|statement| statement.to_string()).collect()
}

/// The different ones that contain this part, without what is written into their texts: numbers and hexadecimal digits.
fn named(statements: &[String], part: &str) -> BTreeSet<String> {
    let constant = |word: &&str| !word.contains(|letter: char| letter.is_ascii_digit());
    let statements = statements.iter().filter(|sent| sent.contains(part));
    statements
        .map(|sent| {
            let words = sent.split(|letter: char| !letter.is_ascii_alphanumeric());
            words.filter(constant).collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[track_caller]
fn assert_names_one(statements: &[String], part: &str) {
    let named = named(statements, part);
    assert_eq!(named.len(), 1, "{part}: {statements:#?}");
}
