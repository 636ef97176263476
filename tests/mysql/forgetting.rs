//! What is removed, by operators and by purges.

use sqlx::{AssertSqlSafe, Executor, MySqlPool};
use tower_idempotency::store::{Reservation, Store};

use super::database;
use crate::mysql_support::*;

const TABLES: [&str; 2] = ["tower_idempotency_leases", "tower_idempotency_transactions"];

async fn rows(outside: &MySqlPool, table: &str) -> i64 {
    let sql = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
    sqlx::query_scalar(sql).fetch_one(outside).await.unwrap()
}

/// Many expired rows at once.
async fn fill(outside: &MySqlPool, table: &str, number: u32) {
    let lease = if table.ends_with("leases") {
        ", attempt = 1, state = 1, lease_end = 1"
    } else {
        ""
    };
    let one = format!(
        "INSERT INTO {table} SET record_key = CONCAT(RANDOM_BYTES(16), RANDOM_BYTES(16)), fingerprint_tag = 1,
             fingerprint = REPEAT('f', 32), nonce = RANDOM_BYTES(16), fence = 1, expires = 1{lease}"
    );
    sqlx::query(AssertSqlSafe(one))
        .execute(outside)
        .await
        .unwrap();
    while rows(outside, table).await < i64::from(number) {
        let left = i64::from(number) - rows(outside, table).await;
        let double = format!(
            "CREATE TEMPORARY TABLE more AS SELECT * FROM {table} WHERE expires = 1 LIMIT {left};
             UPDATE more SET record_key = CONCAT(RANDOM_BYTES(16), RANDOM_BYTES(16));
             INSERT INTO {table} SELECT * FROM more; DROP TEMPORARY TABLE more"
        );
        sqlx::raw_sql(AssertSqlSafe(double))
            .execute(outside)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn forgetting_erases_what_was_saved_at_once() {
    let database = database!();
    let outside = database.shop().await;
    let (lease, transaction) = (database.lease(2).await, database.transaction(2).await);
    for (store, table) in [(&lease as &dyn Store, TABLES[0]), (&transaction, TABLES[1])] {
        let key = fresh_key();
        let claimed = claim(store, &key, &terms()).await;
        complete(store, &claimed, "secret").await.unwrap();
        assert!(store.forget(&key).await.unwrap());
        assert!(!store.forget(&key).await.unwrap());
        let kept = AssertSqlSafe(format!(
            "SELECT count(*) FROM {table} WHERE response IS NOT NULL"
        ));
        let kept: i64 = sqlx::query_scalar(kept).fetch_one(&outside).await.unwrap();
        assert_eq!(kept, 0);
        assert!(matches!(
            reserve(store, &key).await,
            Reservation::Acquired(_)
        ));
    }
}

#[tokio::test]
async fn purging_takes_expired_records_only_and_no_more_than_it_may() {
    let database = database!();
    let outside = database.shop().await;
    let (lease, transaction) = (database.lease(2).await, database.transaction(2).await);
    for (store, table) in [(&lease as &dyn Store, TABLES[0]), (&transaction, TABLES[1])] {
        let kept = claim(store, &fresh_key(), &terms()).await;
        complete(store, &kept, "kept").await.unwrap();
        fill(&outside, table, 3_006).await;
        let running = claim(store, &fresh_key(), &terms()).await;
        let before = rows(&outside, table).await;
        assert_eq!(store.purge_expired(0).await.unwrap(), 0);
        assert_eq!(store.purge_expired(2).await.unwrap(), 2);
        assert_eq!(store.purge_expired(1_500).await.unwrap(), 1_500);
        assert_eq!(rows(&outside, table).await, before - 1_502);
        let left = store.purge_expired(u32::MAX).await.unwrap();
        assert!(left >= 1_500, "{left}");
        assert_eq!(store.purge_expired(10).await.unwrap(), 0);
        complete(store, &running, "ran").await.unwrap();
        assert_replays(&reserve(store, running.key()).await, "ran");
        assert_replays(&reserve(store, kept.key()).await, "kept");
        assert_eq!(rows(&outside, table).await, 2);
    }
}

#[tokio::test]
async fn several_nodes_may_purge_at_once_beside_live_traffic() {
    const ROWS: u32 = 5_000;
    let database = database!();
    let outside = database.shop().await;
    for table in TABLES {
        let stores: [std::sync::Arc<dyn Store>; 2] = if table.ends_with("leases") {
            [
                std::sync::Arc::new(database.lease(2).await),
                std::sync::Arc::new(database.lease(2).await),
            ]
        } else {
            [
                std::sync::Arc::new(database.transaction(2).await),
                std::sync::Arc::new(database.transaction(2).await),
            ]
        };
        fill(&outside, table, ROWS).await;
        let mut purging = tokio::task::JoinSet::new();
        for store in &stores {
            let store = std::sync::Arc::clone(store);
            purging.spawn(async move { store.purge_expired(u32::MAX).await.unwrap() });
        }
        let mut served = 0;
        while rows(&outside, table).await > i64::from(served) {
            let claimed = claim(&*stores[0], &fresh_key(), &terms()).await;
            complete(&*stores[0], &claimed, "done").await.unwrap();
            assert_replays(&reserve(&*stores[1], claimed.key()).await, "done");
            served += 1;
        }
        let purged: u64 = purging.join_all().await.into_iter().sum();
        assert_eq!(purged, u64::from(ROWS));
        assert_eq!(rows(&outside, table).await, i64::from(served));
    }
}

/// The lock of a key that is claimed anew isn't held on the old row: a purge doesn't wait for a handler.
#[tokio::test]
async fn an_operator_does_not_wait_for_a_running_handler() {
    let database = database!();
    let (store, other) = (database.transaction(2).await, database.transaction(2).await);
    let key = fresh_key();
    let old = claim(&store, &key, &terms()).await;
    store
        .complete(&old, &response("old"), INSTANT)
        .await
        .unwrap();
    until(|| async { store.inspect(&key).await.unwrap().is_none() }).await;
    let running = claim(&store, &key, &terms()).await;
    assert!(running.fence() > old.fence());
    assert!(!other.forget(&key).await.unwrap());
    assert_eq!(other.purge_expired(10).await.unwrap(), 0);
    assert!(other.inspect(&key).await.unwrap().is_none());
    other.ping().await.unwrap();
    assert!(matches!(
        reserve(&other, &key).await,
        Reservation::InFlight { .. }
    ));
    complete(&store, &running, "new").await.unwrap();
    assert_replays(&reserve(&other, &key).await, "new");
}

/// The expiry is looked at again in the row that a purge has waited for. By its key alone it would be deleted.
#[tokio::test]
async fn a_row_that_is_claimed_anew_while_a_purge_waits_for_it_is_kept() {
    let database = database!();
    let (outside, claims) = (database.shop().await, database.pool(1).await);
    let store = database.lease(2).await;
    let key = fresh_key();
    let old = claim(&store, &key, &terms()).await;
    store.release(&old).await.unwrap();
    let renew = "UPDATE tower_idempotency_leases SET state = 0, lease_end = 9e15, expires = 9e15";

    let mut claiming = claims.begin().await.unwrap();
    claiming.execute(renew).await.unwrap();
    let purging = tokio::spawn({
        let store = store.clone();
        async move { store.purge_expired(10).await.unwrap() }
    });
    until(|| deletes(&outside)).await;
    claiming.commit().await.unwrap();
    assert_eq!(purging.await.unwrap(), 0);
    assert!(matches!(
        reserve(&store, &key).await,
        Reservation::InFlight { .. }
    ));

    let mut claiming = claims.begin().await.unwrap();
    claiming.execute(renew).await.unwrap();
    let naive = tokio::spawn({
        let pool = database.pool(1).await;
        async move {
            let sql = "DELETE FROM tower_idempotency_leases WHERE record_key = ?";
            let delete = sqlx::query(sql).bind(key.as_bytes().to_vec());
            delete.execute(&pool).await.unwrap().rows_affected()
        }
    });
    until(|| deletes(&outside)).await;
    claiming.commit().await.unwrap();
    assert_eq!(naive.await.unwrap(), 1, "a live row");
}

/// Whether a deletion is under way in this database. What tells of locks is no good: it stands still for as long as it is asked.
async fn deletes(outside: &MySqlPool) -> bool {
    let sql = "SELECT COUNT(*) FROM information_schema.processlist
         WHERE db = DATABASE() AND info LIKE 'DELETE %'";
    count(outside, sql).await > 0
}
