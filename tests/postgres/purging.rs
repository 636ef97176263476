//! What operators remove.

use std::time::Duration;

use sqlx::{Executor, PgPool};
use tokio::task::JoinSet;
use tower_idempotency::{
    Purger, RecordKey,
    store::{Reservation, Store},
};

use super::{database, facts::waits, lease::lapsing};
use crate::postgres_support::*;

#[tokio::test]
async fn purging_takes_expired_records_only_and_no_more_than_it_may() {
    let database = database!();
    let (store, pool) = (database.leases(2).await, database.pool(1).await);
    let live = fresh_key();
    let _running = claim(&store, &live, &lapsing()).await;
    for _ in 0..5 {
        let key = fresh_key();
        let claim = claim(&store, &key, &terms()).await;
        store
            .complete(&claim, &response("done"), INSTANT)
            .await
            .unwrap();
        until(|| async { store.inspect(&key).await.unwrap().is_none() }).await;
    }
    let rows = "SELECT count(*) FROM tower_idempotency_leases";
    assert_eq!(store.purge_expired(0).await.unwrap(), 0);
    assert_eq!(store.purge_expired(2).await.unwrap(), 2);
    assert_eq!(count(&pool, rows).await, 4);
    assert_eq!(store.purge_expired(10).await.unwrap(), 3);
    assert_eq!(store.purge_expired(10).await.unwrap(), 0);
    assert_eq!(count(&pool, rows).await, 1);
    assert!(
        store.inspect(&live).await.unwrap().is_some(),
        "a lapsed claim hasn't expired"
    );
}

/// Several nodes purge, and claims come back to life meanwhile.
#[tokio::test]
async fn purges_side_by_side_take_each_expired_row_once_and_no_live_one() {
    const ROWS: i64 = 20_000;
    let database = database!();
    let pool = database.pool(1).await;
    fill(&pool, ROWS).await;
    let some: Vec<(Vec<u8>,)> = sqlx::query_as(
        "SELECT record_key FROM tower_idempotency_leases ORDER BY expires DESC LIMIT 200",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let mut purges = JoinSet::new();
    for _ in 0..3 {
        let store = database.leases(1).await;
        purges.spawn(async move { store.purge_expired(u32::MAX).await.unwrap() });
    }
    let store = database.leases(2).await;
    let mut claimed = 0;
    for (key,) in some {
        let key = RecordKey::from_bytes(key.try_into().unwrap());
        claim(&store, &key, &terms()).await;
        claimed += 1;
    }
    let purged: u64 = purges.join_all().await.into_iter().sum();
    let rows = "SELECT count(*) FROM tower_idempotency_leases";
    assert_eq!(count(&pool, rows).await, claimed);
    let overwritten = ROWS.unsigned_abs() - purged;
    assert!(overwritten <= claimed.unsigned_abs(), "{overwritten}");
    assert_eq!(store.purge_expired(10).await.unwrap(), 0);
}

/// So many expired rows.
async fn fill(pool: &PgPool, rows: i64) {
    let insert = sqlx::query(
        "INSERT INTO tower_idempotency_leases
             (record_key, fence, lease_end, expires, fingerprint_tag, attempt, state, fingerprint, nonce)
         SELECT sha256(number::text::bytea), 1, 1, number, 257, 1, 2, decode(repeat('01', 32), 'hex'),
             decode(repeat('02', 16), 'hex')
         FROM generate_series(1, $1) AS number",
    );
    insert.bind(rows).execute(pool).await.unwrap();
}

/// As two processes have them, beside live traffic, of which some expires meanwhile.
#[tokio::test]
async fn two_purgers_remove_everything_that_has_expired_and_nothing_else() {
    const ROWS: i64 = 10_000;
    let database = database!();
    let pool = database.pool(1).await;
    fill(&pool, ROWS).await;
    let mut purgers = Vec::new();
    for _ in 0..2 {
        let purger = Purger::new(database.leases(2).await)
            .with_interval(Duration::from_millis(20))
            .with_batch(100);
        purgers.push(purger.spawn());
    }
    let store = database.leases(2).await;
    let running = claim(&store, &fresh_key(), &terms()).await;
    let rows = "SELECT count(*) FROM tower_idempotency_leases";
    let mut kept = Vec::new();
    while count(&pool, rows).await > ROWS / 2 || kept.len() < 20 {
        for retention in [RETENTION, INSTANT] {
            let claimed = claim(&store, &fresh_key(), &terms()).await;
            let completed = store.complete(&claimed, &response("done"), retention).await;
            completed.unwrap();
            if retention == RETENTION {
                kept.push(*claimed.key());
            }
        }
    }
    let live = i64::try_from(kept.len()).unwrap() + 1;
    until(|| async { count(&pool, rows).await == live }).await;
    for purger in purgers {
        purger.stop().await;
    }
    for key in &kept {
        assert_replays(&reserve(&store, key).await, "done");
    }
    let completed = store.complete(&running, &response("ran"), RETENTION).await;
    completed.unwrap();
    assert_replays(&reserve(&store, running.key()).await, "ran");
    assert_eq!(count(&pool, rows).await, live);
}

/// The deletion by a list of keys waits for the row, and deletes what was claimed anew meanwhile.
#[tokio::test]
async fn a_purge_does_not_wait_for_a_row_that_is_being_claimed_and_keeps_it() {
    let database = database!();
    let outside = database.pool(3).await;
    let renew = "UPDATE tower_idempotency_leases SET expires = 9e15";
    let rows = "SELECT count(*) FROM tower_idempotency_leases";
    let store = database.leases(1).await;
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    store.release(&claimed).await.unwrap();

    let mut claiming = outside.begin().await.unwrap();
    claiming.execute(renew).await.unwrap();
    assert_eq!(store.purge_expired(10).await.unwrap(), 0);
    claiming.commit().await.unwrap();
    assert_eq!(store.purge_expired(10).await.unwrap(), 0);
    assert_eq!(count(&outside, rows).await, 1);

    let expire = "UPDATE tower_idempotency_leases SET lease_end = 1, expires = 1";
    outside.execute(expire).await.unwrap();
    let mut claiming = outside.begin().await.unwrap();
    claiming.execute(renew).await.unwrap();
    let naive = tokio::spawn({
        let outside = outside.clone();
        async move {
            let sql = "DELETE FROM tower_idempotency_leases WHERE record_key IN
                 (SELECT record_key FROM tower_idempotency_leases WHERE expires < 1000 LIMIT 10)";
            outside.execute(sql).await.unwrap().rows_affected()
        }
    });
    until(|| waits(&outside)).await;
    claiming.commit().await.unwrap();
    assert_eq!(naive.await.unwrap(), 1, "a live row");
}

#[tokio::test]
async fn operators_can_forget_and_purge() {
    let database = database!();
    let (store, outside) = (database.transactions(1).await, database.pool(1).await);
    let (kept, expired) = (fresh_key(), fresh_key());
    for (key, retention) in [(&kept, RETENTION), (&expired, INSTANT)] {
        let claim = claim(&store, key, &terms()).await;
        store
            .complete(&claim, &response("done"), retention)
            .await
            .unwrap();
    }
    until(|| async { store.inspect(&expired).await.unwrap().is_none() }).await;
    assert!(!store.forget(&expired).await.unwrap());
    let again = claim(&store, &expired, &terms()).await;
    store
        .complete(&again, &response("done"), INSTANT)
        .await
        .unwrap();
    until(|| async { store.inspect(&expired).await.unwrap().is_none() }).await;
    assert_eq!(store.purge_expired(0).await.unwrap(), 0);
    assert_eq!(store.purge_expired(10).await.unwrap(), 1);
    let rows = "SELECT count(*) FROM tower_idempotency_transactions";
    assert_eq!(count(&outside, rows).await, 1);
    assert!(store.forget(&kept).await.unwrap());
    assert!(!store.forget(&kept).await.unwrap());
    assert_eq!(count(&outside, rows).await, 0);
    assert!(matches!(
        reserve(&store, &kept).await,
        Reservation::Acquired(_)
    ));
}
