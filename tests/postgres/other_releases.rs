//! Records as other releases may have left them.

use sqlx::AssertSqlSafe;
use tower_idempotency::{
    RecordKey, StoreErrorKind,
    store::{Reservation, Store},
};

use super::database;
use crate::postgres_support::*;

#[tokio::test]
async fn leases_of_other_releases_are_told_from_damage() {
    let database = database!();
    let (store, pool) = (database.leases(1).await, database.pool(1).await);
    let completed = async || {
        let key = fresh_key();
        let claim = claim(&store, &key, &terms()).await;
        store
            .complete(&claim, &response("done"), RETENTION)
            .await
            .unwrap();
        key
    };
    let set = async |key: &RecordKey, response: &[u8]| {
        let sql = "UPDATE tower_idempotency_leases SET response = $2 WHERE record_key = $1";
        let query = sqlx::query(sql).bind(key.as_bytes()).bind(response);
        query.execute(&pool).await.unwrap();
    };
    // A format of a later release: it must not run again, and can't be read.
    let newer = completed().await;
    set(&newer, &[0xfe, 1, 2, 3]).await;
    let refused = store.reserve(&newer, &fingerprint(1), &terms()).await;
    assert!(refused.is_err());
    // Nothing that can be read: done, and not kept.
    let damaged = completed().await;
    set(&damaged, &[1]).await;
    let Reservation::Replay {
        response: saved, ..
    } = reserve(&store, &damaged).await
    else {
        panic!("not a replay");
    };
    assert!(saved.is_tombstone());
    // A fingerprint in a form that this release doesn't know is handed out as it is.
    let other = completed().await;
    let sql = "UPDATE tower_idempotency_leases SET fingerprint_tag = 65535 WHERE record_key = $1";
    let query = sqlx::query(sql).bind(other.as_bytes());
    query.execute(&pool).await.unwrap();
    let Reservation::Mismatch(stored) = reserve(&store, &other).await else {
        panic!("not a mismatch");
    };
    assert_eq!(stored.tag().to_u16(), 65535);
    let claimed = store.reserve(&other, &stored, &terms()).await.unwrap();
    assert_replays(&claimed, "done");
}

#[tokio::test]
async fn transactions_of_other_releases_are_told_from_damage() {
    let database = database!();
    let (store, outside) = (database.transactions(1).await, database.pool(1).await);
    let completed = async |change: &'static str| {
        let key = fresh_key();
        let claim = claim(&store, &key, &terms()).await;
        store
            .complete(&claim, &response("done"), RETENTION)
            .await
            .unwrap();
        let sql =
            format!("UPDATE tower_idempotency_transactions SET {change} WHERE record_key = $1");
        let query = sqlx::query(AssertSqlSafe(sql)).bind(key.as_bytes());
        assert_eq!(query.execute(&outside).await.unwrap().rows_affected(), 1);
        key
    };
    let newer = completed("response = decode('fe010203', 'hex')").await;
    let refused = store.reserve(&newer, &fingerprint(1), &terms()).await;
    assert!(refused.is_err());
    let damaged = completed("response = decode('01', 'hex')").await;
    let Reservation::Replay {
        response: saved, ..
    } = reserve(&store, &damaged).await
    else {
        panic!("not a replay");
    };
    assert!(saved.is_tombstone());
    let unknown = completed("response = NULL").await;
    assert!(matches!(
        reserve(&store, &unknown).await,
        Reservation::Unknown
    ));
    let other = completed("fingerprint_tag = 65535").await;
    let Reservation::Mismatch(stored) = reserve(&store, &other).await else {
        panic!("not a mismatch");
    };
    assert_eq!(stored.tag().to_u16(), 65535);
    let replay = store.reserve(&other, &stored, &terms()).await.unwrap();
    assert_replays(&replay, "done");
    let unreadable = completed("nonce = decode('01', 'hex')").await;
    assert_kind(
        store.reserve(&unreadable, &fingerprint(1), &terms()).await,
        StoreErrorKind::Other,
    );
}
