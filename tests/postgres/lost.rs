//! Connections that are lost, by a proxy that cuts them at a chosen statement.

use tower_idempotency::{
    StoreErrorKind,
    postgres::TransactionStore,
    store::{Reservation, Store},
};

use super::trips::behind_proxy;
use crate::{postgres_support::*, servers::Fault};

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_resolved_by_the_next_call() {
    for (fault, committed) in [(Fault::CutAfter, true), (Fault::CutBefore, false)] {
        for gives_up in [false, true] {
            let Some((database, proxy, pool)) = behind_proxy(100).await else {
                return;
            };
            let store = TransactionStore::new(pool);
            let outside = database.pool(1).await;
            let claimed = claim(&store, &fresh_key(), &terms()).await;
            charge(&mut take(&claimed), 10).await;
            let lost = proxy.inject(fault.on("COMMIT"));
            let complete = async || store.complete(&claimed, &response("done"), RETENTION).await;
            assert_kind(complete().await, StoreErrorKind::OutcomeUnknown);
            assert_eq!(lost.count(), 1);
            let resolved = if gives_up {
                store.release(&claimed).await
            } else {
                complete().await
            };
            match (committed, gives_up) {
                (true, false) | (false, true) => resolved.unwrap(),
                (true, true) => assert_kind(resolved, StoreErrorKind::LostClaim),
                (false, false) => assert_kind(resolved, StoreErrorKind::RolledBack),
            }
            assert_eq!(count(&outside, CHARGES).await, i64::from(committed));
            match reserve(&store, claimed.key()).await {
                Reservation::Acquired(_) => assert!(!committed),
                answer => {
                    assert!(committed);
                    assert_replays(&answer, "done");
                }
            }
        }
    }
}

/// Each statement of a transaction store's cycle but COMMIT: nothing happened, and the key is free.
#[tokio::test]
async fn a_connection_that_is_cut_before_the_commit_leaves_a_free_key() {
    for cut in [
        "pg_try_advisory_xact_lock",
        "SAVEPOINT tower_idempotency",
        "INSERT INTO charges",
        "INSERT INTO \"tower_idempotency_transactions\"",
    ] {
        for fault in [Fault::CutBefore, Fault::CutAfter] {
            let Some((database, proxy, pool)) = behind_proxy(100).await else {
                return;
            };
            let store = TransactionStore::new(pool);
            let outside = database.pool(1).await;
            let key = fresh_key();
            let struck = proxy.inject(fault.on(cut));
            let reserved = store.reserve(&key, &fingerprint(1), &terms()).await;
            if let Ok(Reservation::Acquired(claimed)) = reserved {
                let charge = run(&mut take(&claimed), "INSERT INTO charges VALUES (10)").await;
                let settled = match charge {
                    Ok(()) => store.complete(&claimed, &response("done"), RETENTION).await,
                    Err(_) => store.abandon(&claimed, RETENTION).await,
                };
                assert_eq!(settled.is_err(), cut.contains("transactions"), "{cut}");
            } else {
                assert_kind(reserved, StoreErrorKind::Unavailable);
            }
            assert_eq!(struck.count(), 1, "{cut}");
            // The server may need a moment to see that the connection has gone.
            let other = database.transactions(1).await;
            let again = loop {
                match reserve(&other, &key).await {
                    Reservation::InFlight { .. } => tokio::task::yield_now().await,
                    answer => break answer,
                }
            };
            assert!(
                matches!(again, Reservation::Acquired(_)),
                "{cut}: {again:?}"
            );
            assert_eq!(count(&outside, CHARGES).await, 0, "{cut}");
        }
    }
}

/// The connection whose transaction the handler has ended may be lost before that is recorded.
#[tokio::test]
async fn an_unknown_outcome_is_recorded_on_another_connection_if_need_be() {
    let Some((_database, proxy, pool)) = behind_proxy(100).await else {
        return;
    };
    let store = TransactionStore::new(pool);
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&claimed);
    charge(&mut tx, 10).await;
    run(&mut tx, "COMMIT").await.unwrap();
    drop(tx);
    // The first is of the record itself, which the transaction doesn't take any more.
    let lost = proxy.inject(Fault::CutBefore.on("excluded.fence").after(1));
    let settled = store.complete(&claimed, &response("done"), RETENTION).await;
    assert_kind(settled, StoreErrorKind::Misused);
    assert_eq!(lost.count(), 1);
    let again = reserve(&store, claimed.key()).await;
    assert!(matches!(again, Reservation::Unknown), "{again:?}");
}
