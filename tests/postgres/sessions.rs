//! What the transaction store does to a session, and what it doesn't.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sqlx::{AssertSqlSafe, Executor, PgPool, postgres::PgPoolOptions};
use tokio::task::JoinSet;
use tower_idempotency::{
    StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::Store,
};

use super::database;
use crate::{postgres_support::*, servers::tell};

/// Nobody helps here: the client keeps its connection open, and does nothing with it.
#[tokio::test]
async fn a_frozen_client_does_not_hold_its_key_for_ever() {
    let database = database!();
    let (store, outside) = (database.transactions(1).await, database.pool(1).await);
    let limited = terms().with_run_limit(Duration::from_millis(200));
    let key = fresh_key();
    let frozen = claim(&store, &key, &limited).await;
    charge(&mut take(&frozen), 10).await;
    until(|| async { count(&outside, LOCKS).await == 0 }).await;
    let other = database.transactions(1).await;
    let claimed = claim(&other, &key, &terms()).await;
    other
        .complete(&claimed, &response("other"), RETENTION)
        .await
        .unwrap();
    let late = store.complete(&frozen, &response("late"), RETENTION).await;
    assert_kind(late, StoreErrorKind::RolledBack);
    assert_eq!(count(&outside, CHARGES).await, 0);
    assert_replays(&reserve(&store, &key).await, "other");
}

async fn setting(pool: &PgPool, name: &str) -> String {
    let sql = "SELECT current_setting($1)";
    sqlx::query_scalar(sql)
        .bind(name)
        .fetch_one(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_users_own_settings_hold_for_the_handler_and_afterwards() {
    const IDLE: &str = "idle_in_transaction_session_timeout";
    let database = database!();
    let own = [
        ("lock_timeout", "7s"),
        ("statement_timeout", "9s"),
        ("bytea_output", "escape"),
        ("standard_conforming_strings", "off"),
        ("intervalstyle", "iso_8601"),
    ];
    // What is the session's, what the terms say, and what the handler has.
    for (session, run_limit, handler) in [
        ("0", 5_000, "5s"),
        ("2s", 5_000, "2s"),
        ("1min", 5_000, "5s"),
        ("1d", 5_000, "5s"),
        ("1500ms", 1_600, "1500ms"),
        ("0", u64::MAX, "2147483647ms"),
    ] {
        let limited = terms().with_run_limit(Duration::from_millis(run_limit));
        for (level, cached, completes) in [
            ("read committed", 100, true),
            ("read committed", 0, false),
            ("repeatable read", 100, false),
            ("serializable", 0, true),
        ] {
            let isolation = ("default_transaction_isolation", level);
            let own = own.into_iter().chain([isolation]);
            let options = database.options().options(own.clone());
            let options = options.options([(IDLE, session)]);
            let pool = pool(options.statement_cache_capacity(cached), 1).await;
            let store = TransactionStore::new(pool.clone());
            let claim = claim(&store, &fresh_key(), &limited).await;
            let mut tx = take(&claim);
            for (name, expected) in own.clone().chain([(IDLE, handler)]) {
                let value: String = sqlx::query_scalar("SELECT current_setting($1)")
                    .bind(name)
                    .fetch_one(&mut *tx)
                    .await
                    .unwrap();
                assert_eq!(value, expected, "{name}");
            }
            let isolation: String = sqlx::query_scalar("SHOW transaction_isolation")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            assert_eq!(isolation, level);
            drop(tx);
            if completes {
                store
                    .complete(&claim, &response("done"), RETENTION)
                    .await
                    .unwrap();
                assert_replays(&reserve(&store, claim.key()).await, "done");
            } else {
                store.release(&claim).await.unwrap();
            }
            for (name, expected) in own.chain([(IDLE, session)]) {
                assert_eq!(setting(&pool, name).await, expected, "{name}");
            }
        }
    }
}

/// Postgres has this limit since 17.
async fn has_transaction_timeout(pool: &PgPool) -> bool {
    let setting = "SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'";
    let has = count(pool, setting).await == 1;
    if !has {
        tell("SKIPPED: the server has no transaction_timeout");
    }
    has
}

#[tokio::test]
async fn a_run_whose_transaction_lasts_for_too_long_is_rolled_back() {
    let database = database!();
    let (store, outside) = (database.transactions(1).await, database.pool(1).await);
    if !has_transaction_timeout(&outside).await {
        return;
    }
    for gives_up in [false, true] {
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let mut tx = take(&claimed);
        charge(&mut tx, 10).await;
        let long = "SET LOCAL transaction_timeout = '10ms'; SELECT pg_sleep(60)";
        let ended = tx.execute(sqlx::raw_sql(long)).await;
        assert_eq!(state(&ended.unwrap_err()), "25P04");
        drop(tx);
        if gives_up {
            store.abandon(&claimed, RETENTION).await.unwrap();
        } else {
            let late = store.complete(&claimed, &response("late"), RETENTION).await;
            assert_kind(late, StoreErrorKind::RolledBack);
        }
        assert_eq!(count(&outside, CHARGES).await, 0);
        let again = claim(&store, claimed.key(), &terms()).await;
        let saved = store.complete(&again, &response("again"), RETENTION).await;
        saved.unwrap();
    }
}

#[tokio::test]
async fn a_lease_call_whose_transaction_lasts_for_too_long_may_be_repeated() {
    let database = database!();
    let outside = database.pool(1).await;
    if !has_transaction_timeout(&outside).await {
        return;
    }
    let limited = ("transaction_timeout", "2s");
    let store = LeaseStore::new(database.pool_with(1, limited).await);
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    let mut holder = outside.begin().await.unwrap();
    let lock = "SELECT * FROM tower_idempotency_leases FOR UPDATE";
    holder.execute(lock).await.unwrap();
    let renewed = store.renew(&claimed, LEASE).await;
    assert_kind(renewed, StoreErrorKind::Unavailable);
    holder.rollback().await.unwrap();
    store.renew(&claimed, LEASE).await.unwrap();
    let saved = store.complete(&claimed, &response("done"), RETENTION).await;
    saved.unwrap();
    assert_replays(&reserve(&store, claimed.key()).await, "done");
}

#[tokio::test]
async fn the_sessions_of_one_pool_may_be_of_different_isolation() {
    let database = database!();
    let connections = Arc::new(AtomicUsize::new(0));
    let pool = PgPoolOptions::new()
        .max_connections(6)
        .after_connect(move |connection, _| {
            let number = connections.fetch_add(1, Ordering::Relaxed);
            let level = LEVELS.into_iter().cycle().nth(number);
            Box::pin(async move {
                let sql = format!(
                    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {}",
                    level.unwrap()
                );
                connection.execute(AssertSqlSafe(sql)).await?;
                Ok(())
            })
        })
        .connect_with(database.options())
        .await
        .unwrap();
    let store = TransactionStore::new(pool);
    let mut tasks = JoinSet::new();
    for amount in 1..=30 {
        let store = store.clone();
        tasks.spawn(async move {
            let claim = claim(&store, &fresh_key(), &terms()).await;
            charge(&mut take(&claim), amount).await;
            store
                .complete(&claim, &response("done"), RETENTION)
                .await
                .unwrap();
            assert_replays(&reserve(&store, claim.key()).await, "done");
        });
    }
    tasks.join_all().await;
    assert_eq!(count(&database.pool(1).await, CHARGES).await, 30);
}
