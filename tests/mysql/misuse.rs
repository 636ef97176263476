//! What a handler can do wrong with its `Tx`, and what it may do: none of it ends in a false success.

use sqlx::{Connection, MySql};
use tokio::sync::oneshot;
use tower_idempotency::{
    StoreErrorKind, Tx, TxErrorKind,
    mysql::TransactionStore,
    store::{Claim, RecordState, Reservation, Store},
};

use super::database;
use crate::mysql_support::*;

/// Settles a claim in one of two ways.
async fn settle(
    store: &TransactionStore,
    claim: &Claim,
    gives_up: bool,
) -> Result<(), tower_idempotency::StoreError> {
    if gives_up {
        store.abandon(claim, RETENTION).await
    } else {
        complete(store, claim, "done").await
    }
}

#[tokio::test]
async fn a_request_without_a_transaction_is_told_so() {
    let database = database!();
    let store = database.lease(1).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let error = Tx::<MySql>::take(claim.attachments()).unwrap_err();
    assert_eq!(error.kind(), TxErrorKind::Absent);
}

#[tokio::test]
async fn a_swallowed_deadlock_is_a_conflict_and_nothing_is_persisted() {
    for gives_up in [false, true] {
        let database = database!();
        let outside = database.shop().await;
        let stores = [database.transaction(1).await, database.transaction(1).await];
        let claims = [
            claim(&stores[0], &fresh_key(), &terms()).await,
            claim(&stores[1], &fresh_key(), &terms()).await,
        ];
        let mut txs = claims.each_ref().map(take);
        for (tx, amount) in txs.iter_mut().zip([1_i64, 2]) {
            sqlx::query("INSERT INTO charges VALUES (?)")
                .bind(amount)
                .execute(&mut **tx)
                .await
                .unwrap();
        }
        let [one, other] = &mut txs;
        let victim = usize::from(!deadlock(one, other).await);
        // The handler goes on as if nothing had happened.
        run(&mut txs[victim], "INSERT INTO charges VALUES (11)")
            .await
            .unwrap();
        let mut nested = txs[victim].begin().await.unwrap();
        run(&mut nested, "INSERT INTO charges VALUES (12)")
            .await
            .unwrap();
        nested.commit().await.unwrap();
        drop(txs);
        let (store, claimed) = (&stores[victim], &claims[victim]);
        assert_kind(
            settle(store, claimed, gives_up).await,
            StoreErrorKind::Conflict,
        );
        match settle(store, claimed, gives_up).await {
            // A transaction that is gone needn't be given up again.
            Ok(()) => assert!(gives_up),
            settled => assert_kind(settled, StoreErrorKind::RolledBack),
        }
        complete(&stores[1 - victim], &claims[1 - victim], "won")
            .await
            .unwrap();
        let survivor = i64::try_from(2 - victim).unwrap();
        assert_eq!(
            count(&outside, "SELECT sum(amount) FROM charges").await,
            survivor
        );
        assert_eq!(
            count(&outside, "SELECT sum(balance) FROM accounts").await,
            2
        );

        let again = claim(&stores[victim], claims[victim].key(), &terms()).await;
        run(&mut take(&again), "INSERT INTO charges VALUES (13)")
            .await
            .unwrap();
        complete(&stores[victim], &again, "again").await.unwrap();
        assert_eq!(
            count(&outside, "SELECT sum(amount) FROM charges").await,
            survivor + 13
        );
    }
}

#[tokio::test]
async fn a_swallowed_write_over_a_newer_row_is_a_conflict_and_nothing_is_persisted() {
    for gives_up in [false, true] {
        let Some(database) = database!().with_isolated_snapshots().await else {
            return;
        };
        let outside = database.shop().await;
        let pool = database.pool(1).await;
        let store = TransactionStore::new(pool.clone());
        store.migrate().await.unwrap();
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let mut tx = take(&claimed);
        run(&mut tx, CHARGE).await.unwrap();
        run(&mut tx, "SELECT * FROM accounts").await.unwrap();
        let newer = "UPDATE accounts SET balance = 5 WHERE id = 1";
        run(&mut outside.acquire().await.unwrap(), newer)
            .await
            .unwrap();
        let refused = run(&mut tx, "UPDATE accounts SET balance = 7 WHERE id = 1").await;
        assert_eq!(number(&refused.unwrap_err()), 1020);
        // The handler goes on as if nothing had happened.
        run(&mut tx, "INSERT INTO charges VALUES (11)")
            .await
            .unwrap();
        drop(tx);
        assert_kind(
            settle(&store, &claimed, gives_up).await,
            StoreErrorKind::Conflict,
        );
        assert_eq!(count(&outside, CHARGES).await, 0);
        assert_eq!(count(&pool, "SELECT @@autocommit").await, 1);
        let again = claim(&store, claimed.key(), &terms()).await;
        run(&mut take(&again), CHARGE).await.unwrap();
        complete(&store, &again, "again").await.unwrap();
        assert_eq!(count(&outside, CHARGES).await, 1);
    }
}

/// Also if another process has taken the key in the meantime, and runs.
#[tokio::test]
async fn a_rolled_back_run_does_not_wait_for_the_one_that_has_its_key_now() {
    for gives_up in [false, true] {
        let database = database!();
        let outside = database.shop().await;
        let (store, other) = (database.transaction(1).await, database.transaction(1).await);
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let mut tx = take(&claimed);
        run(&mut tx, CHARGE).await.unwrap();
        run(&mut tx, "ROLLBACK").await.unwrap();
        run(&mut tx, "INSERT INTO charges VALUES (11)")
            .await
            .unwrap();
        drop(tx);
        let next = claim(&other, claimed.key(), &terms()).await;
        assert_kind(
            settle(&store, &claimed, gives_up).await,
            StoreErrorKind::Conflict,
        );
        run(&mut take(&next), "INSERT INTO charges VALUES (12)")
            .await
            .unwrap();
        complete(&other, &next, "next").await.unwrap();
        assert_eq!(count(&outside, "SELECT sum(amount) FROM charges").await, 12);
        assert_replays(&reserve(&store, claimed.key()).await, "next");
    }
}

/// It undoes one statement, and MySQL lets the rest be committed.
#[tokio::test]
async fn a_swallowed_lock_timeout_is_saved_with_the_rest() {
    let database = database!();
    let outside = database.shop().await;
    let store = database
        .clone()
        .with("SET SESSION innodb_lock_wait_timeout = 1")
        .transaction(1)
        .await;
    let mut holder = outside.begin().await.unwrap();
    run(&mut holder, "UPDATE accounts SET balance = 5 WHERE id = 1")
        .await
        .unwrap();
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&claim);
    run(&mut tx, CHARGE).await.unwrap();
    let timed_out = run(&mut tx, "UPDATE accounts SET balance = 7 WHERE id = 1").await;
    assert_eq!(number(&timed_out.unwrap_err()), 1205);
    drop(tx);
    complete(&store, &claim, "done").await.unwrap();
    holder.rollback().await.unwrap();
    assert_eq!(count(&outside, CHARGES).await, 1);
    assert_eq!(
        count(&outside, "SELECT sum(balance) FROM accounts").await,
        0
    );
}

#[tokio::test]
async fn a_swallowed_constraint_error_is_saved_with_the_rest() {
    let database = database!();
    let outside = database.shop().await;
    let store = database.transaction(1).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&claim);
    run(&mut tx, CHARGE).await.unwrap();
    assert_eq!(number(&run(&mut tx, CHARGE).await.unwrap_err()), 1062);
    run(&mut tx, "INSERT INTO charges VALUES (NULL)")
        .await
        .unwrap_err();
    run(&mut tx, "no such statement").await.unwrap_err();
    drop(tx);
    complete(&store, &claim, "done").await.unwrap();
    assert_eq!(count(&outside, CHARGES).await, 1);
    assert_replays(&reserve(&store, claim.key()).await, "done");
}

/// With how much of it was persisted: all until it was committed, and nothing after that.
#[tokio::test]
async fn a_transaction_that_the_handler_commits_leaves_an_unknown_outcome() {
    let endings: [&[&'static str]; 6] = [
        &[CHARGE, "COMMIT"],
        &[CHARGE, "SET autocommit = 1"],
        &[CHARGE, "COMMIT", "INSERT INTO charges VALUES (11)"],
        &[
            CHARGE,
            "CREATE TABLE made (n INT)",
            "INSERT INTO charges VALUES (11)",
        ],
        &[
            CHARGE,
            "START TRANSACTION",
            "INSERT INTO charges VALUES (11)",
        ],
        &[
            CHARGE,
            "COMMIT",
            "START TRANSACTION",
            "INSERT INTO charges VALUES (11)",
            "ROLLBACK",
        ],
    ];
    for statements in endings {
        for gives_up in [false, true] {
            let database = database!();
            let outside = database.shop().await;
            let (store, other) = (database.transaction(1).await, database.transaction(1).await);
            let claimed = claim(&store, &fresh_key(), &terms()).await;
            let mut tx = take(&claimed);
            for statement in statements {
                sqlx::raw_sql(*statement).execute(&mut *tx).await.unwrap();
            }
            drop(tx);
            let early = reserve(&other, claimed.key()).await;
            assert!(matches!(early, Reservation::Unknown), "{early:?}");
            for _ in 0..2 {
                assert_kind(
                    settle(&store, &claimed, gives_up).await,
                    StoreErrorKind::Misused,
                );
            }
            assert_eq!(
                count(&outside, "SELECT sum(amount) FROM charges").await,
                10,
                "{statements:?}"
            );
            for store in [&store, &other] {
                assert!(matches!(
                    reserve(store, claimed.key()).await,
                    Reservation::Unknown
                ));
                let record = store.inspect(claimed.key()).await.unwrap().unwrap();
                assert!(matches!(record.state, RecordState::Unknown));
                assert!(record.expires_in <= RETENTION);
            }
            let mismatch = store
                .reserve(claimed.key(), &fingerprint(2), &terms())
                .await;
            assert!(matches!(mismatch, Ok(Reservation::Mismatch(_))));

            assert!(store.forget(claimed.key()).await.unwrap());
            let next = claim(&store, claimed.key(), &terms()).await;
            complete(&store, &next, "next").await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_transaction_that_the_handler_rolls_back_is_a_conflict() {
    for gives_up in [false, true] {
        let database = database!();
        let outside = database.shop().await;
        let store = database.transaction(1).await;
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let mut tx = take(&claimed);
        run(&mut tx, CHARGE).await.unwrap();
        run(&mut tx, "ROLLBACK").await.unwrap();
        run(&mut tx, "INSERT INTO charges VALUES (11)")
            .await
            .unwrap();
        drop(tx);
        assert_kind(
            settle(&store, &claimed, gives_up).await,
            StoreErrorKind::Conflict,
        );
        assert_eq!(count(&outside, CHARGES).await, 0, "nor what came after it");
        let next = claim(&store, claimed.key(), &terms()).await;
        complete(&store, &next, "next").await.unwrap();
    }
}

#[tokio::test]
async fn a_tx_that_outlives_the_answer_is_no_success_and_is_rolled_back() {
    for gives_up in [false, true] {
        let database = database!();
        let outside = database.shop().await;
        let store = database.transaction(1).await;
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let mut tx = take(&claimed);
        run(&mut tx, CHARGE).await.unwrap();
        let (answered, answer) = oneshot::channel::<()>();
        let spawned = tokio::spawn(async move {
            answer.await.unwrap();
            run(&mut tx, "INSERT INTO charges VALUES (20)")
                .await
                .unwrap();
        });
        for _ in 0..2 {
            assert_kind(
                settle(&store, &claimed, gives_up).await,
                StoreErrorKind::Misused,
            );
        }
        assert!(matches!(
            reserve(&store, claimed.key()).await,
            Reservation::InFlight { .. }
        ));
        answered.send(()).unwrap();
        spawned.await.unwrap();
        let next = after_flight(&store, claimed.key()).await;
        assert!(matches!(next, Reservation::Acquired(_)), "{next:?}");
        assert_eq!(count(&outside, CHARGES).await, 0);
    }
}

/// Both misuses at once: the answer comes first, and then the effect.
#[tokio::test]
async fn a_transaction_that_is_committed_after_the_answer_leaves_an_unknown_outcome() {
    for gives_up in [false, true] {
        let database = database!();
        let outside = database.shop().await;
        let store = database.transaction(1).await;
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let mut tx = take(&claimed);
        assert_kind(
            settle(&store, &claimed, gives_up).await,
            StoreErrorKind::Misused,
        );
        run(&mut tx, CHARGE).await.unwrap();
        run(&mut tx, "COMMIT").await.unwrap();
        drop(tx);
        let next = after_flight(&store, claimed.key()).await;
        assert!(matches!(next, Reservation::Unknown), "{next:?}");
        assert_eq!(count(&outside, CHARGES).await, 1);
    }
}

#[tokio::test]
async fn nested_transactions_commit_and_roll_back_within_the_outer_one() {
    let database = database!();
    let outside = database.shop().await;
    let store = database.transaction(1).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&claim);
    for (amount, commits) in [(1, true), (2, false), (3, true)] {
        let mut nested = tx.begin().await.unwrap();
        sqlx::query("INSERT INTO charges VALUES (?)")
            .bind(amount)
            .execute(&mut *nested)
            .await
            .unwrap();
        if commits {
            nested.commit().await.unwrap();
        }
    }
    drop(tx);
    complete(&store, &claim, "done").await.unwrap();
    assert_eq!(count(&outside, "SELECT sum(amount) FROM charges").await, 4);
}

#[tokio::test]
async fn a_nested_transaction_left_open_is_no_success() {
    for gives_up in [false, true] {
        let database = database!();
        let outside = database.shop().await;
        let store = database.transaction(1).await;
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let mut tx = take(&claimed);
        let mut nested = tx.begin().await.unwrap();
        run(&mut nested, CHARGE).await.unwrap();
        std::mem::forget(nested);
        drop(tx);
        match settle(&store, &claimed, gives_up).await {
            Ok(()) if gives_up => {}
            settled => assert_kind(settled, StoreErrorKind::Misused),
        }
        assert_eq!(count(&outside, CHARGES).await, 0);
        let next = claim(&store, claimed.key(), &terms()).await;
        complete(&store, &next, "next").await.unwrap();
    }
}

#[tokio::test]
async fn an_unused_transaction_commits_the_record() {
    let database = database!();
    let store = database.transaction(1).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    complete(&store, &claim, "done").await.unwrap();
    assert_replays(&reserve(&store, claim.key()).await, "done");
}

#[tokio::test]
async fn a_temporary_table_commits_nothing() {
    let database = database!();
    let outside = database.shop().await;
    let store = database.transaction(1).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let made = "INSERT INTO charges VALUES (10); CREATE TEMPORARY TABLE here (n INT); DROP TEMPORARY TABLE here";
    sqlx::raw_sql(made)
        .execute(&mut *take(&claim))
        .await
        .unwrap();
    assert_eq!(count(&outside, CHARGES).await, 0);
    complete(&store, &claim, "done").await.unwrap();
    assert_eq!(count(&outside, CHARGES).await, 1);
}

/// What it has begun since takes no record; what it had done was committed all the same.
#[tokio::test]
async fn a_handler_that_begins_what_can_not_write_has_committed() {
    for begins in ["START TRANSACTION READ ONLY", "LOCK TABLES charges WRITE"] {
        let database = database!();
        let outside = database.shop().await;
        let pool = database.pool(1).await;
        let store = TransactionStore::new(pool.clone());
        store.migrate().await.unwrap();
        let key = fresh_key();
        let claim = claim(&store, &key, &terms()).await;
        let mut tx = take(&claim);
        run(&mut tx, "INSERT INTO charges VALUES (7)")
            .await
            .unwrap();
        sqlx::raw_sql(begins).execute(&mut *tx).await.unwrap();
        drop(tx);
        let told = complete(&store, &claim, "done").await.unwrap_err().kind();
        if told == StoreErrorKind::OutcomeUnknown {
            // Under its own table locks the connection can't even read what became of it.
            assert_eq!(begins, "LOCK TABLES charges WRITE");
            let again = complete(&store, &claim, "done").await;
            assert_kind(again, StoreErrorKind::Misused);
        } else {
            assert_eq!(told, StoreErrorKind::Misused);
        }
        assert_eq!(count(&outside, CHARGES).await, 1, "{begins}");
        assert!(matches!(reserve(&store, &key).await, Reservation::Unknown));
        // And nothing of it is left on the pool's connection.
        let free = pool.acquire().await.unwrap();
        drop(free);
        sqlx::query("INSERT INTO charges VALUES (8)")
            .execute(&pool)
            .await
            .unwrap();
        assert_eq!(count(&outside, CHARGES).await, 2, "{begins}");
    }
}
