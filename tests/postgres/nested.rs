//! Nested transactions and savepoints of the handler.

use sqlx::Connection;
use tower_idempotency::{StoreErrorKind, store::Reservation};

use super::{
    database,
    misuse::{CHARGE, runs_again, settle, store_in},
};
use crate::postgres_support::*;

#[tokio::test]
async fn an_error_inside_a_savepoint_may_be_swallowed() {
    let database = database!();
    let (store, outside) = store_in(&database).await;
    let by_hand = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&by_hand);
    run(&mut tx, CHARGE).await.unwrap();
    run(&mut tx, "SAVEPOINT attempt").await.unwrap();
    let error = run(&mut tx, CHARGE).await.unwrap_err();
    assert_eq!(state(&error), "23505");
    run(&mut tx, "ROLLBACK TO SAVEPOINT attempt").await.unwrap();
    drop(tx);
    settle(&store, &by_hand, false).await.unwrap();
    assert_replays(&reserve(&store, by_hand.key()).await, "done");
    assert_eq!(count(&outside, CHARGES).await, 1);

    let nested = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&nested);
    run(&mut tx, "INSERT INTO charges (amount) VALUES (20)")
        .await
        .unwrap();
    let mut attempt = tx.begin().await.unwrap();
    sqlx::query(CHARGE)
        .execute(&mut *attempt)
        .await
        .unwrap_err();
    attempt.rollback().await.unwrap();
    drop(tx);
    settle(&store, &nested, false).await.unwrap();
    assert_replays(&reserve(&store, nested.key()).await, "done");
    assert_eq!(count(&outside, CHARGES).await, 2);
}

#[tokio::test]
async fn nested_transactions_commit_and_roll_back_within_the_outer_one() {
    let database = database!();
    let (store, outside) = store_in(&database).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&claim);
    for (amount, commits) in [(1, true), (2, false), (3, true)] {
        let mut nested = tx.begin().await.unwrap();
        sqlx::query("INSERT INTO charges (amount) VALUES ($1)")
            .bind(amount)
            .execute(&mut *nested)
            .await
            .unwrap();
        if commits {
            nested.commit().await.unwrap();
        }
    }
    drop(tx);
    settle(&store, &claim, false).await.unwrap();
    let sum = "SELECT sum(amount)::bigint FROM charges";
    assert_eq!(count(&outside, sum).await, 4);
}

#[tokio::test]
async fn a_nested_transaction_left_open_is_no_success() {
    for gives_up in [false, true] {
        let database = database!();
        let (store, outside) = store_in(&database).await;
        let key = fresh_key();
        let claimed = claim(&store, &key, &terms()).await;
        let mut tx = take(&claimed);
        let mut nested = tx.begin().await.unwrap();
        sqlx::query(CHARGE).execute(&mut *nested).await.unwrap();
        std::mem::forget(nested);
        drop(tx);
        let settled = settle(&store, &claimed, gives_up).await;
        if gives_up {
            settled.unwrap();
        } else {
            assert_kind(settled, StoreErrorKind::Misused);
        }
        assert_eq!(count(&outside, CHARGES).await, 0);
        runs_again(&store, &key).await;
    }
}

#[tokio::test]
async fn a_nested_transaction_left_open_does_not_hide_a_commit() {
    let database = database!();
    let (store, outside) = store_in(&database).await;
    let key = fresh_key();
    let claimed = claim(&store, &key, &terms()).await;
    let mut tx = take(&claimed);
    let mut nested = tx.begin().await.unwrap();
    sqlx::query(CHARGE).execute(&mut *nested).await.unwrap();
    sqlx::query("COMMIT").execute(&mut *nested).await.unwrap();
    std::mem::forget(nested);
    drop(tx);
    assert_kind(
        settle(&store, &claimed, false).await,
        StoreErrorKind::Misused,
    );
    assert_eq!(count(&outside, CHARGES).await, 1);
    assert!(matches!(reserve(&store, &key).await, Reservation::Unknown));
}
