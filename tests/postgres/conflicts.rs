//! Transactions that the database refuses at their end, or in favour of another.

use std::error::Error as _;

use tower_idempotency::{StoreErrorKind, postgres::TransactionStore};

use super::{
    database,
    misuse::{runs_again, settle, store_in},
};
use crate::postgres_support::*;

#[tokio::test]
async fn a_deferred_constraint_that_fails_at_commit_is_a_rollback() {
    let database = database!();
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

/// Two that read what the other one writes: one of them can't commit.
#[tokio::test]
async fn a_serialization_failure_rolls_back_and_a_retry_runs() {
    let database = database!();
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
    let database = database!();
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
