//! What the stores rest on: how sqlx 0.9 and SQLite behave. One of these failing means that a store must be looked at again.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod sqlite_support;

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use sqlite_support::*;
use sqlx::{Connection, Sqlite, SqliteConnection, sqlite::SqliteJournalMode};
use tower_idempotency::{
    StoreErrorKind, Tx,
    sqlite::TransactionStore,
    store::{Reservation, Store},
};

/// Polls this often, letting the worker thread answer in between, and drops the future.
async fn drop_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            return Some(output);
        }
        // The worker is another thread: give it a moment that isn't measured.
        for _ in 0..200 {
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
    }
    None
}

fn code(error: &sqlx::Error) -> String {
    error
        .as_database_error()
        .unwrap()
        .code()
        .unwrap()
        .into_owned()
}

#[tokio::test]
async fn a_begin_that_is_dropped_leaves_no_transaction_in_the_pool() {
    let file = File::wal();
    let (pool, outside) = (shop(&file, 1).await, file.pool(1).await);
    for polls in 1..=3 {
        drop(drop_after(polls, pool.begin_with("BEGIN IMMEDIATE")).await);
        sqlx::query("INSERT INTO charges (amount) VALUES (?)")
            .bind(polls)
            .execute(&pool)
            .await
            .unwrap();
        assert_eq!(
            count(&outside, CHARGES).await,
            i64::from(polls),
            "seen by others at once"
        );
    }
}

#[tokio::test]
async fn a_reservation_that_is_dropped_leaves_no_transaction_and_no_key_behind() {
    let file = File::wal();
    let pool = shop(&file, 1).await;
    let store = TransactionStore::new(pool.clone());
    store.migrate().await.unwrap();
    for polls in 1..=12 {
        let key = fresh_key();
        drop(drop_after(polls, store.reserve(&key, &fingerprint(1), &terms())).await);
        let claimed = loop {
            match reserve(&store, &key).await {
                Reservation::Acquired(claim) => break claim,
                Reservation::InFlight { .. } => tokio::task::yield_now().await,
                other => panic!("{other:?}"),
            }
        };
        store.release(&claimed).await.unwrap();
        sqlx::query("INSERT INTO charges (amount) VALUES (?)")
            .bind(polls)
            .execute(&pool)
            .await
            .unwrap();
    }
    assert_eq!(count(&file.pool(1).await, CHARGES).await, 12);
}

#[tokio::test]
async fn a_completion_that_is_dropped_is_told_truly_by_the_next_one() {
    let file = File::wal();
    let outside = file.pool(1).await;
    let store = TransactionStore::new(shop(&file, 1).await);
    store.migrate().await.unwrap();
    let mut committed = 0;
    for polls in 1..=1000 {
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        sqlx::query("INSERT INTO charges (amount) VALUES (?)")
            .bind(polls)
            .execute(&mut *Tx::<Sqlite>::take(claimed.attachments()).unwrap())
            .await
            .unwrap();
        let saved = response("done");
        let ended = drop_after(polls, store.complete(&claimed, &saved, RETENTION)).await;
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
        if ended.is_some() {
            break;
        }
    }
    assert!(committed > 0, "the last one ran to its end");
}

#[tokio::test]
async fn a_commit_that_is_dropped_after_its_first_poll_may_have_happened() {
    let file = File::wal();
    let (pool, outside) = (shop(&file, 1).await, file.pool(1).await);
    let mut transaction = pool.begin().await.unwrap();
    sqlx::query("INSERT INTO charges (amount) VALUES (1)")
        .execute(&mut *transaction)
        .await
        .unwrap();
    drop(drop_after(1, transaction.commit()).await);
    until(|| async { count(&outside, CHARGES).await == 1 }).await;
}

#[tokio::test]
async fn a_deferred_transaction_that_read_first_is_busy_at_once_where_an_immediate_one_waits() {
    let file = File::wal();
    let (pool, other) = (shop(&file, 2).await, file.pool(1).await);
    let mut deferred = pool.begin().await.unwrap();
    sqlx::query(CHARGES)
        .fetch_one(&mut *deferred)
        .await
        .unwrap();
    sqlx::query("INSERT INTO charges (amount) VALUES (1)")
        .execute(&other)
        .await
        .unwrap();
    let error = sqlx::query("INSERT INTO charges (amount) VALUES (2)")
        .execute(&mut *deferred)
        .await
        .unwrap_err();
    assert_eq!(
        code(&error),
        "517",
        "SQLITE_BUSY_SNAPSHOT, with a busy timeout of 30 s"
    );
    deferred.rollback().await.unwrap();

    let writing = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move {
            let mut immediate = pool.begin_with("BEGIN IMMEDIATE").await?;
            sqlx::query(CHARGES).fetch_one(&mut *immediate).await?;
            sqlx::query("INSERT INTO charges (amount) VALUES (2)")
                .execute(&mut *immediate)
                .await?;
            immediate.commit().await
        }
    });
    assert!(!waiting.is_finished());
    writing.rollback().await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_busy_commit_leaves_the_transaction_open_and_can_be_sent_again() {
    let file = File::new(SqliteJournalMode::Delete);
    let _made = shop(&file, 1).await;
    let (writer, reader) = (file.pool_with(1, Duration::ZERO).await, file.pool(1).await);
    let mut writing = writer.acquire().await.unwrap();
    let run = async |connection: &mut SqliteConnection, sql: &'static str| {
        sqlx::query(sql).execute(connection).await.map(drop)
    };
    run(&mut writing, "BEGIN IMMEDIATE").await.unwrap();
    run(&mut writing, "INSERT INTO charges (amount) VALUES (1)")
        .await
        .unwrap();
    let mut reading = reader.begin().await.unwrap();
    sqlx::query(CHARGES).fetch_one(&mut *reading).await.unwrap();
    assert_eq!(code(&run(&mut writing, "COMMIT").await.unwrap_err()), "5");
    reading.rollback().await.unwrap();
    run(&mut writing, "COMMIT").await.unwrap();
    assert_eq!(count(&reader, CHARGES).await, 1);
}

#[tokio::test]
async fn closing_a_connection_rolls_its_transaction_back() {
    let file = File::wal();
    let pool = shop(&file, 1).await;
    let mut connection = pool.acquire().await.unwrap();
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut *connection)
        .await
        .unwrap();
    sqlx::query("INSERT INTO charges (amount) VALUES (1)")
        .execute(&mut *connection)
        .await
        .unwrap();
    assert!(
        !connection.is_in_transaction(),
        "sqlx counts its own transactions only"
    );
    connection.close().await.unwrap();
    assert_eq!(count(&pool, CHARGES).await, 0);
}

#[tokio::test]
async fn an_in_memory_database_ends_with_its_last_connection() {
    let pool = sqlx::sqlite::SqlitePoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect("sqlite::memory:")
        .await
        .unwrap();
    sqlx::query("CREATE TABLE here (x)")
        .execute(&pool)
        .await
        .unwrap();
    let tables = "SELECT count(*) FROM sqlite_master";
    assert_eq!(count(&pool, tables).await, 1);
    pool.acquire().await.unwrap().close().await.unwrap();
    assert_eq!(count(&pool, tables).await, 0);
}
