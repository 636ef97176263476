//! What a handler can do wrong with its `Tx`, and what it may do: none of it ends in a false success.
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod postgres_support;
mod servers;

use std::error::Error as _;

use postgres_support::*;
use sqlx::{Connection, PgPool, Postgres};
use tokio::sync::oneshot;
use tower_idempotency::{
    RecordKey, StoreError, StoreErrorKind, Tx, TxErrorKind,
    postgres::TransactionStore,
    store::{Claim, RecordState, Reservation, Store},
};

const CHARGE: &str = "INSERT INTO charges (amount) VALUES (10)";

/// A store on a pool of one connection, and a pool to look from outside.
async fn store_in(database: &Database) -> (TransactionStore, PgPool) {
    (database.transactions(1).await, database.pool(1).await)
}

async fn settle(store: &TransactionStore, claim: &Claim, gives_up: bool) -> Result<(), StoreError> {
    if gives_up {
        store.abandon(claim, RETENTION).await
    } else {
        store.complete(claim, &response("done"), RETENTION).await
    }
}

/// The next answer that isn't "in flight".
async fn next(store: &TransactionStore, key: &RecordKey) -> Reservation {
    loop {
        match reserve(store, key).await {
            Reservation::InFlight { .. } => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
}

async fn runs_again(store: &TransactionStore, key: &RecordKey) {
    let Reservation::Acquired(claim) = next(store, key).await else {
        panic!("not free");
    };
    store
        .complete(&claim, &response("next"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(store, key).await, "next");
}

#[tokio::test]
async fn a_transaction_is_taken_once_and_clones_of_the_extensions_are_harmless() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, outside) = store_in(&database).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let kept_by_a_middleware = claim.attachments().clone();
    let kind = || {
        Tx::<Postgres>::take(&kept_by_a_middleware)
            .unwrap_err()
            .kind()
    };
    let mut tx = take(&claim);
    assert_eq!(kind(), TxErrorKind::Taken);
    run(&mut tx, CHARGE).await.unwrap();
    drop(tx);
    assert_eq!(kind(), TxErrorKind::Taken);
    settle(&store, &claim, false).await.unwrap();
    assert_eq!(kind(), TxErrorKind::Settled);
    assert_eq!(count(&outside, CHARGES).await, 1);
}

#[tokio::test]
async fn a_tx_that_outlives_the_answer_is_no_success_and_is_rolled_back() {
    for gives_up in [false, true] {
        let Some(database) = Database::new().await else {
            return;
        };
        let (store, outside) = store_in(&database).await;
        let key = fresh_key();
        let claimed = claim(&store, &key, &terms()).await;
        let mut tx = take(&claimed);
        run(&mut tx, CHARGE).await.unwrap();
        let (answered, answer) = oneshot::channel::<()>();
        let spawned = tokio::spawn(async move {
            answer.await.unwrap();
            run(&mut tx, "INSERT INTO charges (amount) VALUES (20)")
                .await
                .unwrap();
        });
        for _ in 0..2 {
            let settled = settle(&store, &claimed, gives_up).await;
            assert_kind(settled, StoreErrorKind::Misused);
        }
        let busy = reserve(&store, &key).await;
        assert!(matches!(busy, Reservation::InFlight { .. }));
        answered.send(()).unwrap();
        spawned.await.unwrap();
        runs_again(&store, &key).await;
        assert_eq!(count(&outside, CHARGES).await, 0);
    }
}

/// What the handler executes, what of it fails, and how many charges there are then.
type Ending = (&'static [&'static str], usize, i64);

#[tokio::test]
async fn a_transaction_that_the_handler_ended_leaves_an_unknown_outcome() {
    const ANOTHER: &str = "INSERT INTO charges (amount) VALUES (20)";
    const ENDINGS: [Ending; 10] = [
        (&[CHARGE, "COMMIT"], 0, 1),
        (&[CHARGE, "ROLLBACK"], 0, 0),
        (&[CHARGE, "COMMIT", ANOTHER], 0, 2),
        (&[CHARGE, "COMMIT", CHARGE], 1, 1),
        (&[CHARGE, "COMMIT", "BEGIN", ANOTHER], 0, 1),
        (&[CHARGE, "COMMIT AND CHAIN", ANOTHER], 0, 1),
        (&[CHARGE, "COMMIT", "BEGIN", CHARGE], 1, 1),
        (&[CHARGE, "ROLLBACK AND CHAIN", ANOTHER], 0, 0),
        (&[CHARGE, CHARGE, "COMMIT"], 1, 0),
        (
            &[CHARGE, "COMMIT", "BEGIN", "SAVEPOINT another", CHARGE],
            1,
            1,
        ),
    ];
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, outside) = store_in(&database).await;
    for (statements, failures, persisted) in ENDINGS {
        for gives_up in [false, true] {
            let key = fresh_key();
            let claimed = claim(&store, &key, &terms()).await;
            let mut tx = take(&claimed);
            let mut failed = 0;
            for statement in statements {
                // One by one and unprepared, as an application sends such statements.
                let result = sqlx::raw_sql(*statement).execute(&mut *tx).await;
                failed += usize::from(result.is_err());
            }
            assert_eq!(failed, failures, "{statements:?}");
            drop(tx);
            for _ in 0..2 {
                let settled = settle(&store, &claimed, gives_up).await;
                assert_kind(settled, StoreErrorKind::Misused);
            }
            assert_eq!(count(&outside, CHARGES).await, persisted, "{statements:?}");
            assert!(
                matches!(reserve(&store, &key).await, Reservation::Unknown),
                "{statements:?}"
            );
            let record = store.inspect(&key).await.unwrap().unwrap();
            assert!(matches!(record.state, RecordState::Unknown));
            let mismatch = store.reserve(&key, &fingerprint(2), &terms()).await;
            assert!(matches!(mismatch.unwrap(), Reservation::Mismatch(_)));
            assert!(store.forget(&key).await.unwrap());
            runs_again(&store, &key).await;
            sqlx::query("DELETE FROM charges")
                .execute(&outside)
                .await
                .unwrap();
        }
    }
}

/// Both misuses at once: the answer comes first, and then the effect.
#[tokio::test]
async fn a_transaction_that_is_ended_after_the_answer_leaves_an_unknown_outcome() {
    for gives_up in [false, true] {
        let Some(database) = Database::new().await else {
            return;
        };
        let (store, outside) = store_in(&database).await;
        let key = fresh_key();
        let claimed = claim(&store, &key, &terms()).await;
        let mut tx = take(&claimed);
        assert_kind(
            settle(&store, &claimed, gives_up).await,
            StoreErrorKind::Misused,
        );
        run(&mut tx, CHARGE).await.unwrap();
        run(&mut tx, "COMMIT").await.unwrap();
        drop(tx);
        let next = next(&store, &key).await;
        assert_eq!(count(&outside, CHARGES).await, 1);
        assert!(matches!(next, Reservation::Unknown), "{next:?}");
    }
}

/// Postgres takes nothing more then, and would answer COMMIT by a quiet ROLLBACK.
#[tokio::test]
async fn a_swallowed_error_is_no_success() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, outside) = store_in(&database).await;
    for statement in [
        CHARGE,
        "INSERT INTO charges (amount) VALUES (-1)",
        "no such statement",
        "SELECT 1 / 0",
        "SELECT 1 FROM no_such_table",
    ] {
        for gives_up in [false, true] {
            let key = fresh_key();
            let claimed = claim(&store, &key, &terms()).await;
            let mut tx = take(&claimed);
            run(&mut tx, CHARGE).await.unwrap();
            run(&mut tx, statement).await.unwrap_err();
            drop(tx);
            for _ in 0..2 {
                let settled = settle(&store, &claimed, gives_up).await;
                if gives_up {
                    settled.unwrap();
                } else {
                    assert_kind(settled, StoreErrorKind::Misused);
                }
            }
            assert_eq!(count(&outside, CHARGES).await, 0);
            runs_again(&store, &key).await;
        }
    }
}

#[tokio::test]
async fn an_error_inside_a_savepoint_may_be_swallowed() {
    let Some(database) = Database::new().await else {
        return;
    };
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
    let Some(database) = Database::new().await else {
        return;
    };
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
        let Some(database) = Database::new().await else {
            return;
        };
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
    let Some(database) = Database::new().await else {
        return;
    };
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

#[tokio::test]
async fn a_deferred_constraint_that_fails_at_commit_is_a_rollback() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, outside) = store_in(&database).await;
    sqlx::raw_sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'no charge over 1000'; END $$;
         CREATE CONSTRAINT TRIGGER limited AFTER INSERT ON charges DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW WHEN (NEW.amount > 1000) EXECUTE FUNCTION refuse();",
    )
    .execute(&outside)
    .await
    .unwrap();
    for statement in [
        "INSERT INTO charges (amount, account) VALUES (10, 99)",
        "INSERT INTO charges (amount) VALUES (1001)",
    ] {
        let key = fresh_key();
        let claimed = claim(&store, &key, &terms()).await;
        let backend = "SELECT pg_backend_pid()::bigint";
        let mut tx = take(&claimed);
        let before: i64 = sqlx::query_scalar(backend)
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        run(&mut tx, statement).await.unwrap();
        drop(tx);
        let error = settle(&store, &claimed, false).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::RolledBack);
        assert!(error.source().is_some());
        assert_eq!(count(&outside, CHARGES).await, 0);
        let again = claim(&store, &key, &terms()).await;
        let after: i64 = sqlx::query_scalar(backend)
            .fetch_one(&mut *take(&again))
            .await
            .unwrap();
        assert_eq!(before, after, "the connection is in order");
        settle(&store, &again, false).await.unwrap();
    }
}

#[tokio::test]
async fn an_unused_transaction_commits_the_record() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, _) = store_in(&database).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    settle(&store, &claim, false).await.unwrap();
    assert_replays(&reserve(&store, claim.key()).await, "done");
}

/// Two that read what the other one writes: one of them can't commit.
#[tokio::test]
async fn a_serialization_failure_rolls_back_and_a_retry_runs() {
    let Some(database) = Database::new().await else {
        return;
    };
    let setting = ("default_transaction_isolation", "serializable");
    let store = TransactionStore::new(database.pool_with(2, setting).await);
    let outside = database.pool(1).await;
    let keys = [fresh_key(), fresh_key()];
    let claims = [
        claim(&store, &keys[0], &terms()).await,
        claim(&store, &keys[1], &terms()).await,
    ];
    let mut txs = [take(&claims[0]), take(&claims[1])];
    for tx in &mut txs {
        sqlx::query("SELECT sum(amount)::bigint FROM charges")
            .execute(&mut **tx)
            .await
            .unwrap();
    }
    for (tx, amount) in txs.iter_mut().zip([1, 2]) {
        charge(tx, amount).await;
    }
    drop(txs);
    settle(&store, &claims[0], false).await.unwrap();
    let error = settle(&store, &claims[1], false).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict);
    assert_eq!(count(&outside, CHARGES).await, 1);
    assert_replays(&reserve(&store, &keys[0]).await, "done");
    runs_again(&store, &keys[1]).await;
}

#[tokio::test]
async fn the_victim_of_a_deadlock_is_rolled_back_and_a_retry_runs() {
    let Some(database) = Database::new().await else {
        return;
    };
    let outside = database.pool(1).await;
    sqlx::query("INSERT INTO accounts VALUES (1), (2)")
        .execute(&outside)
        .await
        .unwrap();
    let setting = ("deadlock_timeout", "50ms");
    let store = TransactionStore::new(database.pool_with(2, setting).await);
    let keys = [fresh_key(), fresh_key()];
    let claims = [
        claim(&store, &keys[0], &terms()).await,
        claim(&store, &keys[1], &terms()).await,
    ];
    let lock = |id: i64| format!("SELECT 1 FROM accounts WHERE id = {id} FOR UPDATE");
    let mut txs = [take(&claims[0]), take(&claims[1])];
    for (tx, id) in txs.iter_mut().zip([1, 2]) {
        run(tx, &lock(id)).await.unwrap();
    }
    let [first, second] = &mut txs;
    let (one, two) = (lock(2), lock(1));
    let locked = tokio::join!(run(first, &one), run(second, &two));
    drop(txs);
    let victim = usize::from(locked.1.is_err());
    let errors = [locked.0, locked.1].into_iter().filter_map(Result::err);
    let errors: Vec<String> = errors.map(|error| state(&error)).collect();
    assert_eq!(errors, ["40P01"]);
    // It would be said by the handler's answer; even if that is a success, it is none.
    let [lost, won] = [victim, 1 - victim].map(|index| claims.get(index).unwrap());
    assert_kind(settle(&store, lost, false).await, StoreErrorKind::Misused);
    settle(&store, won, false).await.unwrap();
    assert_replays(&reserve(&store, won.key()).await, "done");
    runs_again(&store, lost.key()).await;
}

#[test]
fn a_tx_may_outlive_its_runtime_and_die_on_any_thread() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let Some((database, tx, claimed)) = first.block_on(async {
        let database = Database::new().await?;
        let (store, _) = store_in(&database).await;
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let mut tx = take(&claimed);
        run(&mut tx, CHARGE).await.unwrap();
        Some((database, tx, claimed))
    }) else {
        return;
    };
    let key = *claimed.key();
    drop(first);
    std::thread::spawn(move || drop((claimed, tx)))
        .join()
        .unwrap();
    runtime().block_on(async {
        let (store, outside) = store_in(&database).await;
        runs_again(&store, &key).await;
        assert_eq!(count(&outside, CHARGES).await, 0);
    });
}
