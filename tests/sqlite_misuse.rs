//! What a handler can do wrong with its `Tx`, and what it may do: none of it ends in a false success.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod sqlite_support;

use sqlite_support::*;
use sqlx::{Connection, Sqlite};
use tokio::sync::oneshot;
use tower_idempotency::{
    StoreErrorKind, Tx, TxErrorKind,
    sqlite::{LeaseStore, TransactionStore},
    store::{Claim, RecordState, Reservation, Store},
};

async fn store_in(file: &File, size: u32) -> TransactionStore {
    let store = TransactionStore::new(shop(file, size).await);
    store.migrate().await.unwrap();
    store
}

fn take(claim: &Claim) -> Tx<Sqlite> {
    Tx::take(claim.attachments()).unwrap()
}

async fn run(tx: &mut Tx<Sqlite>, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::query(sql).execute(&mut **tx).await.map(drop)
}

const CHARGE: &str = "INSERT INTO charges (amount) VALUES (10)";

#[tokio::test]
async fn a_transaction_is_taken_once_and_clones_of_the_extensions_are_harmless() {
    let file = File::wal();
    let store = store_in(&file, 1).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let kept_by_a_middleware = claim.attachments().clone();
    let kind = || {
        Tx::<Sqlite>::take(&kept_by_a_middleware)
            .unwrap_err()
            .kind()
    };
    let mut tx = take(&claim);
    assert_eq!(kind(), TxErrorKind::Taken);
    run(&mut tx, CHARGE).await.unwrap();
    drop(tx);
    assert_eq!(kind(), TxErrorKind::Taken);
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_eq!(kind(), TxErrorKind::Settled);
    assert_eq!(count(&file.pool(1).await, CHARGES).await, 1);
}

#[tokio::test]
async fn a_request_without_a_transaction_is_told_the_possible_causes() {
    let file = File::wal();
    let store = LeaseStore::new(file.pool(1).await);
    store.migrate().await.unwrap();
    let claim = claim(&store, &fresh_key(), &terms()).await;
    for extensions in [claim.attachments(), &http::Extensions::new()] {
        let error = Tx::<Sqlite>::take(extensions).unwrap_err();
        assert_eq!(error.kind(), TxErrorKind::Absent);
        for cause in [
            "no idempotency key",
            "no idempotency layer",
            "lease store",
            "another database",
        ] {
            assert!(error.to_string().contains(cause), "{error}");
        }
    }
}

#[tokio::test]
async fn a_tx_that_outlives_the_answer_is_no_success_and_is_rolled_back() {
    for gives_up in [false, true] {
        let file = File::wal();
        let (store, outside) = (store_in(&file, 1).await, file.pool(1).await);
        let key = fresh_key();
        let claimed = claim(&store, &key, &terms()).await;
        let mut tx = take(&claimed);
        run(&mut tx, CHARGE).await.unwrap();
        let (answered, mut answer) = oneshot::channel::<()>();
        let spawned = tokio::spawn(async move {
            (&mut answer).await.unwrap();
            run(&mut tx, "INSERT INTO charges (amount) VALUES (20)")
                .await
                .unwrap();
        });
        for _ in 0..2 {
            let settled = if gives_up {
                store.release(&claimed).await
            } else {
                store.complete(&claimed, &response("done"), RETENTION).await
            };
            assert_kind(settled, StoreErrorKind::Misused);
        }
        assert!(matches!(
            reserve(&store, &key).await,
            Reservation::InFlight { .. }
        ));
        answered.send(()).unwrap();
        spawned.await.unwrap();
        let next = loop {
            match reserve(&store, &key).await {
                Reservation::Acquired(claim) => break claim,
                Reservation::InFlight { .. } => tokio::task::yield_now().await,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(count(&outside, CHARGES).await, 0);
        store
            .complete(&next, &response("next"), RETENTION)
            .await
            .unwrap();
        assert_replays(&reserve(&store, &key).await, "next");
    }
}

#[tokio::test]
async fn a_transaction_that_the_handler_ended_leaves_an_unknown_outcome() {
    let endings: [(&[&str], i64); 5] = [
        (&[CHARGE, "COMMIT"], 1),
        (&[CHARGE, "ROLLBACK"], 0),
        (
            &[
                CHARGE,
                "COMMIT",
                "BEGIN",
                "INSERT INTO charges (amount) VALUES (20)",
            ],
            1,
        ),
        (
            &[
                CHARGE,
                "INSERT OR ROLLBACK INTO charges (amount) VALUES (10)",
            ],
            0,
        ),
        (
            &[
                CHARGE,
                "INSERT OR ROLLBACK INTO charges (amount) VALUES (10)",
                "INSERT INTO charges (amount) VALUES (20)",
            ],
            1,
        ),
    ];
    for (statements, persisted) in endings {
        for gives_up in [false, true] {
            let file = File::wal();
            let (store, outside) = (store_in(&file, 1).await, file.pool(1).await);
            let key = fresh_key();
            let claimed = claim(&store, &key, &terms()).await;
            let mut tx = take(&claimed);
            for statement in statements {
                let swallowed = run(&mut tx, statement).await;
                assert_eq!(swallowed.is_err(), statement.contains("OR ROLLBACK"));
            }
            drop(tx);
            for _ in 0..2 {
                let settled = if gives_up {
                    store.abandon(&claimed, RETENTION).await
                } else {
                    store.complete(&claimed, &response("done"), RETENTION).await
                };
                assert_kind(settled, StoreErrorKind::Misused);
            }
            assert_eq!(count(&outside, CHARGES).await, persisted, "{statements:?}");
            assert!(matches!(reserve(&store, &key).await, Reservation::Unknown));
            let record = store.inspect(&key).await.unwrap().unwrap();
            assert!(matches!(record.state, RecordState::Unknown));
            let mismatch = store
                .reserve(&key, &fingerprint(2), &terms())
                .await
                .unwrap();
            assert!(matches!(mismatch, Reservation::Mismatch(_)));

            assert!(store.forget(&key).await.unwrap());
            let next = claim(&store, &key, &terms()).await;
            store
                .complete(&next, &response("next"), RETENTION)
                .await
                .unwrap();
        }
    }
}

/// Both misuses at once: the answer comes first, and then the effect.
#[tokio::test]
async fn a_transaction_that_is_ended_after_the_answer_leaves_an_unknown_outcome() {
    for gives_up in [false, true] {
        let file = File::wal();
        let (store, outside) = (store_in(&file, 1).await, file.pool(1).await);
        let key = fresh_key();
        let claimed = claim(&store, &key, &terms()).await;
        let mut tx = take(&claimed);
        let settled = if gives_up {
            store.release(&claimed).await
        } else {
            store.complete(&claimed, &response("done"), RETENTION).await
        };
        assert_kind(settled, StoreErrorKind::Misused);
        run(&mut tx, CHARGE).await.unwrap();
        run(&mut tx, "COMMIT").await.unwrap();
        drop(tx);
        let next = loop {
            match reserve(&store, &key).await {
                Reservation::InFlight { .. } => tokio::task::yield_now().await,
                next => break next,
            }
        };
        assert_eq!(count(&outside, CHARGES).await, 1);
        assert!(matches!(next, Reservation::Unknown), "{next:?}");
    }
}

#[tokio::test]
async fn a_swallowed_constraint_error_is_saved_with_the_rest() {
    let file = File::wal();
    let store = store_in(&file, 1).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&claim);
    run(&mut tx, CHARGE).await.unwrap();
    run(&mut tx, CHARGE).await.unwrap_err();
    run(&mut tx, "INSERT INTO charges (amount) VALUES (-1)")
        .await
        .unwrap_err();
    run(&mut tx, "no such statement").await.unwrap_err();
    drop(tx);
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_eq!(count(&file.pool(1).await, CHARGES).await, 1);
    assert_replays(&reserve(&store, claim.key()).await, "done");
}

#[tokio::test]
async fn nested_transactions_commit_and_roll_back_within_the_outer_one() {
    let file = File::wal();
    let store = store_in(&file, 1).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&claim);
    for (amount, commits) in [(1, true), (2, false), (3, true)] {
        let mut nested = tx.begin().await.unwrap();
        sqlx::query("INSERT INTO charges (amount) VALUES (?)")
            .bind(amount)
            .execute(&mut *nested)
            .await
            .unwrap();
        if commits {
            nested.commit().await.unwrap();
        }
    }
    drop(tx);
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_eq!(
        count(&file.pool(1).await, "SELECT sum(amount) FROM charges").await,
        4
    );
}

#[tokio::test]
async fn a_nested_transaction_left_open_is_no_success() {
    for gives_up in [false, true] {
        let file = File::wal();
        let store = store_in(&file, 1).await;
        let key = fresh_key();
        let claimed = claim(&store, &key, &terms()).await;
        let mut tx = take(&claimed);
        let mut nested = tx.begin().await.unwrap();
        sqlx::query(CHARGE).execute(&mut *nested).await.unwrap();
        std::mem::forget(nested);
        drop(tx);
        if gives_up {
            store.release(&claimed).await.unwrap();
        } else {
            assert_kind(
                store.complete(&claimed, &response("done"), RETENTION).await,
                StoreErrorKind::Misused,
            );
        }
        assert_eq!(count(&file.pool(1).await, CHARGES).await, 0);
        let next = claim(&store, &key, &terms()).await;
        store
            .complete(&next, &response("next"), RETENTION)
            .await
            .unwrap();
    }
}

#[test]
fn a_tx_may_outlive_its_runtime_and_die_on_any_thread() {
    let file = File::wal();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let (tx, claimed) = first.block_on(async {
        let store = store_in(&file, 1).await;
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let mut tx = take(&claimed);
        run(&mut tx, CHARGE).await.unwrap();
        (tx, claimed)
    });
    drop(first);
    std::thread::spawn(move || drop((claimed, tx)))
        .join()
        .unwrap();
    runtime().block_on(async {
        let store = store_in(&file, 1).await;
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        store
            .complete(&claimed, &response("done"), RETENTION)
            .await
            .unwrap();
        assert_eq!(count(&file.pool(1).await, CHARGES).await, 0);
    });
}

#[tokio::test]
async fn an_unused_transaction_commits_the_record() {
    let file = File::wal();
    let store = store_in(&file, 1).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, claim.key()).await, "done");
}
