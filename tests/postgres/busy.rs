//! A key's lock that is taken tells nothing of its record, which can be read all the same.

use sqlx::{PgConnection, PgPool, Postgres, pool::PoolConnection};
use tower_idempotency::{
    StoreErrorKind,
    postgres::TransactionStore,
    store::{Reservation, Store},
};

use super::{database, trips::behind_proxy};
use crate::{postgres_support::*, servers::Fault};

/// Of the one key that has its lock at this moment.
async fn lock_of(outside: &PgPool) -> i64 {
    let sql = "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks JOIN pg_database ON oid = database
        WHERE locktype = 'advisory' AND datname = current_database()";
    count(outside, sql).await
}

/// As a replay of another process has it until its transaction has ended.
async fn hold(outside: &PgPool, lock: i64) -> PoolConnection<Postgres> {
    let mut holder = outside.acquire().await.unwrap();
    advisory(&mut holder, "SELECT pg_advisory_lock($1)", lock).await;
    holder
}

async fn let_go(mut holder: PoolConnection<Postgres>, lock: i64) {
    advisory(&mut holder, "SELECT pg_advisory_unlock($1)", lock).await;
}

async fn advisory(connection: &mut PgConnection, sql: &'static str, lock: i64) {
    sqlx::query(sql)
        .bind(lock)
        .execute(connection)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_finished_key_is_answered_while_another_session_has_its_lock() {
    let database = database!();
    let outside = database.pool(2).await;
    for level in LEVELS {
        let setting = ("default_transaction_isolation", level);
        let store = async || TransactionStore::new(database.pool_with(1, setting).await);
        let (first, second) = (store().await, store().await);
        let claimed = claim(&first, &fresh_key(), &terms()).await;
        let key = claimed.key();
        let lock = lock_of(&outside).await;
        first
            .complete(&claimed, &response("done"), RETENTION)
            .await
            .unwrap();
        let holder = hold(&outside, lock).await;
        for _ in 0..2 {
            for store in [&first, &second] {
                assert_replays(&reserve(store, key).await, "done");
                let other = store.reserve(key, &fingerprint(2), &terms()).await.unwrap();
                assert!(matches!(other, Reservation::Mismatch(stored) if stored == fingerprint(1)));
            }
        }
        let_go(holder, lock).await;
    }
}

#[tokio::test]
async fn without_a_record_a_key_is_in_flight_while_another_session_has_its_lock() {
    let database = database!();
    let outside = database.pool(2).await;
    for level in LEVELS {
        let setting = ("default_transaction_isolation", level);
        let store = TransactionStore::new(database.pool_with(1, setting).await);
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let lock = lock_of(&outside).await;
        store.release(&claimed).await.unwrap();
        let holder = hold(&outside, lock).await;
        let answer = reserve(&store, claimed.key()).await;
        assert!(matches!(answer, Reservation::InFlight { .. }));
        let_go(holder, lock).await;
        claim(&store, claimed.key(), &terms()).await;
        until(|| async { count(&outside, LOCKS).await == 0 }).await;
    }
}

/// The lock is only needed to prove that there is no record.
#[tokio::test]
async fn what_became_of_a_commit_is_told_by_its_record_while_another_session_has_the_lock() {
    for (fault, known) in [(Fault::CutAfter, true), (Fault::CutBefore, false)] {
        let Some((database, proxy, pool)) = behind_proxy(100).await else {
            return;
        };
        let outside = database.pool(2).await;
        let store = TransactionStore::new(pool);
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let lock = lock_of(&outside).await;
        let struck = proxy.inject(fault.on("COMMIT"));
        let complete = async || store.complete(&claimed, &response("done"), RETENTION).await;
        assert_kind(complete().await, StoreErrorKind::OutcomeUnknown);
        assert_eq!(struck.count(), 1);
        until(|| async { count(&outside, LOCKS).await == 0 }).await;
        let holder = hold(&outside, lock).await;
        if known {
            complete().await.unwrap();
        } else {
            assert_kind(complete().await, StoreErrorKind::OutcomeUnknown);
        }
        let_go(holder, lock).await;
        if !known {
            assert_kind(complete().await, StoreErrorKind::RolledBack);
        }
    }
}

/// The replay's transaction ends after its answer: here not before it is let go.
#[tokio::test]
async fn who_runs_a_key_anew_waits_for_the_end_of_its_replay_and_duplicates_dont() {
    let Some((_database, proxy, _)) = behind_proxy(100).await else {
        return;
    };
    let store = TransactionStore::new(pool(proxy.url().parse().unwrap(), 2).await);
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    let key = claimed.key();
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    let ending = proxy.inject(Fault::Hang.on("ROLLBACK"));
    assert_replays(&reserve(&store, key).await, "done");
    ending.struck(1).await;
    assert_replays(&reserve(&store, key).await, "done");
    assert!(store.forget(key).await.unwrap());
    let seen = proxy.count(READ);
    let ended = async {
        until(|| async { proxy.count(READ) > seen }).await;
        proxy.resume();
    };
    let terms = terms();
    let (_anew, ()) = tokio::join!(claim(&store, key, &terms), ended);
}

/// A part of the statement that reads a record without its lock.
const READ: &str = "response, (transaction_timestamp()";
