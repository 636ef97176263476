//! Futures that are dropped half-way: how sqlx leaves a connection then, and how the stores do.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use sqlx::{Executor, PgPool, Row};
use tower_idempotency::{
    StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::{Reservation, Store},
};

use super::database;
use crate::postgres_support::*;

/// Drops the future after this many polls, each of them when there was something to go on with.
pub(super) async fn drop_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polled = 0;
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        polled += 1;
        if polled < polls {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    })
    .await
}

/// Now and then an answer is there before it is asked for, so that a call needs fewer polls than usual: several rounds, and on a busy
/// machine as many as it takes until one is dropped.
pub(super) fn polls_until<'a>(dropped: &'a Cell<i64>) -> impl Iterator<Item = u32> + 'a {
    let rounds = POLLS.into_iter().cycle().enumerate().take(1000);
    let is_due = |round: usize| round < 4 * POLLS.len() || dropped.get() == 0;
    rounds
        .take_while(move |(round, _)| is_due(*round))
        .map(|(_, polls)| polls)
}

const POLLS: [u32; 6] = [1, 2, 3, 4, 6, 12];

/// Whether the pool's one connection came out of it in a transaction.
pub(super) async fn is_in_transaction(pool: &PgPool) -> bool {
    let sql = sqlx::raw_sql("SELECT now() <> statement_timestamp()");
    sql.fetch_one(pool).await.unwrap().get(0)
}

/// Mended in a later sqlx than 0.9.0: this test tells when.
#[tokio::test]
async fn a_begin_that_is_dropped_leaves_a_transaction_in_the_pool() {
    let database = database!();
    let pool = database.pool(1).await;
    let poisoned = Cell::new(0);
    for polls in polls_until(&poisoned) {
        if drop_after(polls, pool.begin()).await.is_none() {
            let is_poisoned = is_in_transaction(&pool).await;
            poisoned.update(|count| count + i64::from(is_poisoned));
            pool.execute("ROLLBACK").await.unwrap();
        }
    }
    assert!(poisoned.get() > 0);
}

/// What the stores do about the dropped `BEGIN`.
#[tokio::test]
async fn a_reservation_that_is_dropped_leaves_no_transaction_and_no_key_behind() {
    let database = database!();
    for level in ["read committed", "serializable"] {
        let setting = ("default_transaction_isolation", level);
        let pool = database.pool_with(1, setting).await;
        let store = TransactionStore::new(pool.clone());
        let dropped = Cell::new(0);
        for polls in polls_until(&dropped) {
            let key = fresh_key();
            let (of, terms) = (fingerprint(1), terms());
            let reservation = store.reserve(&key, &of, &terms);
            let is_dropped = drop_after(polls, reservation).await.is_none();
            dropped.update(|count| count + i64::from(is_dropped));
            let claimed = loop {
                match reserve(&store, &key).await {
                    Reservation::Acquired(claim) => break claim,
                    Reservation::InFlight { .. } => tokio::task::yield_now().await,
                    other => panic!("{other:?}"),
                }
            };
            store.release(&claimed).await.unwrap();
            assert!(!is_in_transaction(&pool).await);
        }
        assert!(dropped.get() > 0);
    }
}

#[tokio::test]
async fn a_lease_call_that_is_dropped_leaves_a_pool_in_order() {
    let database = database!();
    for cached in [100, 0] {
        let options = database.options().statement_cache_capacity(cached);
        let pool = pool(options, 1).await;
        let store = LeaseStore::new(pool.clone());
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let saved = response("done");
        let dropped = Cell::new(0);
        for polls in polls_until(&dropped) {
            let complete = store.complete(&claimed, &saved, RETENTION);
            let is_dropped = drop_after(polls, complete).await.is_none();
            dropped.update(|count| count + i64::from(is_dropped));
            assert!(!is_in_transaction(&pool).await);
        }
        assert!(dropped.get() > 0);
        store.complete(&claimed, &saved, RETENTION).await.unwrap();
        assert_replays(&reserve(&store, claimed.key()).await, "done");
    }
}

#[tokio::test]
async fn a_commit_that_is_dropped_after_its_first_poll_may_have_happened() {
    let database = database!();
    let (pool, outside) = (database.pool(1).await, database.pool(1).await);
    // Now and then the answer is there at once.
    for amount in 1..=1000_i64 {
        let mut transaction = pool.begin().await.unwrap();
        let charge = sqlx::query("INSERT INTO charges (amount) VALUES ($1)").bind(amount);
        charge.execute(&mut *transaction).await.unwrap();
        let answered = drop_after(1, transaction.commit()).await;
        until(|| async { count(&outside, CHARGES).await == amount }).await;
        if answered.is_none() {
            return;
        }
    }
    panic!("each commit was answered at its first poll");
}

/// What the store makes of the dropped `COMMIT`.
#[tokio::test]
async fn a_completion_that_is_dropped_is_told_truly_by_the_next_one() {
    let database = database!();
    let (store, outside) = (database.transactions(1).await, database.pool(1).await);
    let (mut committed, dropped) = (0, Cell::new(0));
    for (polls, amount) in polls_until(&dropped).zip(1..) {
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        charge(&mut take(&claimed), amount).await;
        let saved = response("done");
        let completed = drop_after(polls, store.complete(&claimed, &saved, RETENTION)).await;
        dropped.update(|count| count + i64::from(completed.is_none()));
        // It reads under the lock, which the dropped connection may have for a moment still: that wait is bounded.
        match store.complete(&claimed, &saved, RETENTION).await {
            Ok(()) => {
                committed += 1;
                assert_replays(&reserve(&store, claimed.key()).await, "done");
            }
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::RolledBack);
                assert!(store.inspect(claimed.key()).await.unwrap().is_none());
            }
        }
        assert_eq!(count(&outside, CHARGES).await, committed);
    }
    assert!(
        dropped.get() > 0 && committed > 0,
        "{dropped:?}, {committed}"
    );
}

#[tokio::test]
async fn a_run_that_is_cut_off_in_mid_statement_does_not_keep_its_key_for_as_long_as_that_takes() {
    let database = database!();
    let (store, other) = (
        database.transactions(1).await,
        database.transactions(1).await,
    );
    let key = fresh_key();
    let mut cut = claim(&store, &key, &terms()).await;
    let mut tx = take(&cut);
    let outside = database.pool(1).await;
    let active = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND query LIKE 'SELECT pg_sleep%' AND state = 'active'";
    tokio::select! {
        // Longer than `until` has patience.
        slept = run(&mut tx, "SELECT pg_sleep(300)") => panic!("{slept:?}"),
        () = until(|| async { count(&outside, active).await == 1 }) => {}
    }
    drop(tx);
    cut.set_interrupted();
    drop(store.abandon(&cut, RETENTION).await);
    until(|| async { matches!(reserve(&other, &key).await, Reservation::Acquired(_)) }).await;
}
