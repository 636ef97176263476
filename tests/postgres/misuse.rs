//! What a handler can do wrong with its `Tx`, and what it may do: none of it ends in a false success.

use sqlx::{PgPool, Postgres};
use tokio::sync::oneshot;
use tower_idempotency::{
    RecordKey, StoreError, StoreErrorKind, Tx, TxErrorKind,
    postgres::TransactionStore,
    store::{Claim, RecordState, Reservation, Store},
};

use super::database;
use crate::postgres_support::*;

pub(super) const CHARGE: &str = "INSERT INTO charges (amount) VALUES (10)";

/// A store on a pool of one connection, and a pool to look from outside.
pub(super) async fn store_in(database: &Database) -> (TransactionStore, PgPool) {
    (database.transactions(1).await, database.pool(1).await)
}

pub(super) async fn settle(
    store: &TransactionStore,
    claim: &Claim,
    gives_up: bool,
) -> Result<(), StoreError> {
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

pub(super) async fn runs_again(store: &TransactionStore, key: &RecordKey) {
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
    let database = database!();
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
        let database = database!();
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
    let database = database!();
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
        let database = database!();
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
    let database = database!();
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
async fn an_unused_transaction_commits_the_record() {
    let database = database!();
    let (store, _) = store_in(&database).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    settle(&store, &claim, false).await.unwrap();
    assert_replays(&reserve(&store, claim.key()).await, "done");
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

#[tokio::test]
async fn an_unknown_outcome_is_recorded_also_where_others_wait_for_the_connection() {
    let database = database!();
    let pool = database.pool(1).await;
    let store = TransactionStore::new(pool.clone());
    let (other, outside) = (database.transactions(1).await, database.pool(1).await);
    let key = fresh_key();
    let claim = claim(&store, &key, &terms()).await;
    let mut tx = take(&claim);
    run(&mut tx, CHARGE).await.unwrap();
    run(&mut tx, "COMMIT").await.unwrap();
    drop(tx);
    let (held, holds) = oneshot::channel::<()>();
    let waiting = tokio::spawn(async move {
        let connection = pool.acquire().await.unwrap();
        drop(holds.await);
        drop(connection);
    });
    let error = settle(&store, &claim, false).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misused);
    assert!(matches!(reserve(&other, &key).await, Reservation::Unknown));
    assert_eq!(count(&outside, CHARGES).await, 1);
    drop(held);
    waiting.await.unwrap();
}
