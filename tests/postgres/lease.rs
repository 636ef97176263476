//! The lease store.

use tower_idempotency::{
    RecordKey, StoreErrorKind,
    postgres::LeaseStore,
    store::{Nonce, RecordState, Reservation, Store, Takeover, Terms},
};

use super::database;
use crate::postgres_support::*;

pub(super) fn lapsing() -> Terms {
    Terms::new(Nonce::random(), INSTANT, RETENTION)
}

pub(super) async fn until_lapsed(store: &LeaseStore, key: &RecordKey) {
    until(|| async {
        let record = store.inspect(key).await.unwrap().unwrap();
        matches!(record.state, RecordState::Unknown)
    })
    .await;
}

#[tokio::test]
async fn a_completed_claim_is_replayed_by_another_process() {
    let database = database!();
    let (store, other) = (database.leases(2).await, database.leases(2).await);
    let key = fresh_key();
    let claim = claim(&store, &key, &terms()).await;
    assert!(matches!(
        reserve(&other, &key).await,
        Reservation::InFlight { .. }
    ));
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&other, &key).await, "done");
    let mismatch = other
        .reserve(&key, &fingerprint(2), &terms())
        .await
        .unwrap();
    assert!(matches!(mismatch, Reservation::Mismatch(stored) if stored == fingerprint(1)));
}

#[tokio::test]
async fn a_lapsed_claim_is_taken_over_only_where_the_terms_say_so() {
    let database = database!();
    let (store, other) = (database.leases(2).await, database.leases(2).await);
    let key = fresh_key();
    let first = claim(&store, &key, &lapsing()).await;
    until_lapsed(&store, &key).await;
    assert!(matches!(reserve(&other, &key).await, Reservation::Unknown));
    let second = claim(&other, &key, &terms().with_takeover(Takeover::RunAgain)).await;
    assert_eq!(second.attempt(), 2);
    assert!(second.fence() > first.fence());

    assert_kind(store.renew(&first, LEASE).await, StoreErrorKind::LostClaim);
    assert_kind(store.release(&first).await, StoreErrorKind::LostClaim);
    assert_kind(
        store.abandon(&first, RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert_kind(
        store.complete(&first, &response("late"), RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert!(matches!(
        reserve(&store, &key).await,
        Reservation::InFlight { .. }
    ));
    other
        .complete(&second, &response("second"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "second");
}

#[tokio::test]
async fn a_lapsed_claim_that_nobody_took_still_renews_and_completes() {
    let database = database!();
    let store = database.leases(1).await;
    let key = fresh_key();
    let claim = claim(&store, &key, &lapsing()).await;
    until_lapsed(&store, &key).await;
    store.renew(&claim, LEASE).await.unwrap();
    let record = store.inspect(&key).await.unwrap().unwrap();
    assert!(
        matches!(record.state, RecordState::InFlight { lease_left, .. } if lease_left <= LEASE)
    );
    assert!(
        record.expires_in > RETENTION,
        "the retention counts from the lease's end"
    );
    store.renew(&claim, INSTANT).await.unwrap();
    until_lapsed(&store, &key).await;
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test]
async fn every_call_may_be_repeated_with_its_nonce_and_none_changed() {
    let database = database!();
    let store = database.leases(1).await;
    let (done, left, free) = (fresh_key(), fresh_key(), fresh_key());
    let terms = terms();
    let claimed = claim(&store, &done, &terms).await;
    let again = claim(&store, &done, &terms).await;
    assert_eq!(
        (again.attempt(), again.fence()),
        (claimed.attempt(), claimed.fence())
    );
    for _ in 0..2 {
        store.renew(&claimed, LEASE).await.unwrap();
    }
    store
        .complete(&claimed, &response("first"), RETENTION)
        .await
        .unwrap();
    store
        .complete(&claimed, &response("second"), RETENTION * 2)
        .await
        .unwrap();
    assert_replays(
        &store.reserve(&done, &fingerprint(1), &terms).await.unwrap(),
        "first",
    );
    assert_kind(
        store.renew(&claimed, LEASE).await,
        StoreErrorKind::LostClaim,
    );
    assert_kind(store.release(&claimed).await, StoreErrorKind::LostClaim);
    assert_kind(
        store.abandon(&claimed, RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert!(store.inspect(&done).await.unwrap().unwrap().expires_in <= RETENTION);

    let claimed = claim(&store, &left, &terms).await;
    store.abandon(&claimed, RETENTION).await.unwrap();
    store.abandon(&claimed, RETENTION * 2).await.unwrap();
    assert_kind(store.release(&claimed).await, StoreErrorKind::LostClaim);
    assert_kind(
        store.complete(&claimed, &response("late"), RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert!(store.inspect(&left).await.unwrap().unwrap().expires_in <= RETENTION);

    let claimed = claim(&store, &free, &terms).await;
    for _ in 0..2 {
        store.release(&claimed).await.unwrap();
    }
    assert!(store.inspect(&free).await.unwrap().is_none());
}

#[tokio::test]
async fn a_released_key_is_free_and_its_fence_goes_on() {
    let database = database!();
    let store = database.leases(1).await;
    let key = fresh_key();
    let mut fence = 0;
    for _ in 0..20 {
        let claim = claim(&store, &key, &terms()).await;
        assert_eq!(claim.attempt(), 1);
        assert!(claim.fence() > fence);
        fence = claim.fence();
        store.release(&claim).await.unwrap();
        assert!(store.inspect(&key).await.unwrap().is_none());
        store.purge_expired(10).await.unwrap();
    }
}

/// As after the server's clock was set back.
#[tokio::test]
async fn a_fence_ahead_of_the_clock_goes_on() {
    let database = database!();
    let (store, outside) = (database.leases(1).await, database.pool(1).await);
    let key = fresh_key();
    let first = claim(&store, &key, &lapsing()).await;
    let an_hour = "UPDATE tower_idempotency_leases SET fence = fence + 3600000000";
    sqlx::query(an_hour).execute(&outside).await.unwrap();
    until_lapsed(&store, &key).await;
    let takeover = terms().with_takeover(Takeover::RunAgain);
    let second = claim(&store, &key, &takeover).await;
    assert!(second.fence() > first.fence() + 3_600_000_000);
    store.release(&second).await.unwrap();
    let third = claim(&store, &key, &terms()).await;
    assert!(third.fence() > second.fence());
}

#[tokio::test]
async fn a_lost_record_is_written_by_its_owner() {
    let database = database!();
    let (store, pool) = (database.leases(1).await, database.pool(1).await);
    for deleted in [false, true] {
        let keys = [fresh_key(), fresh_key(), fresh_key()];
        let [done, left, free] = &keys;
        let claims = [
            claim(&store, done, &terms()).await,
            claim(&store, left, &terms()).await,
            claim(&store, free, &terms()).await,
        ];
        for key in &keys {
            if deleted {
                let sql = "DELETE FROM tower_idempotency_leases WHERE record_key = $1";
                let deleted = sqlx::query(sql).bind(key.as_bytes()).execute(&pool).await;
                assert_eq!(deleted.unwrap().rows_affected(), 1);
            } else {
                assert!(store.forget(key).await.unwrap());
            }
            assert!(!store.forget(key).await.unwrap());
        }
        store
            .complete(&claims[0], &response("done"), RETENTION)
            .await
            .unwrap();
        store.abandon(&claims[1], RETENTION).await.unwrap();
        store.release(&claims[2]).await.unwrap();
        assert_replays(&reserve(&store, done).await, "done");
        assert!(matches!(reserve(&store, left).await, Reservation::Unknown));
        assert!(matches!(
            reserve(&store, free).await,
            Reservation::Acquired(_)
        ));
    }
}

#[tokio::test]
async fn forgetting_erases_what_was_saved_at_once() {
    let database = database!();
    let store = database.leases(1).await;
    let key = fresh_key();
    let claim = claim(&store, &key, &terms()).await;
    store
        .complete(&claim, &response("secret"), RETENTION)
        .await
        .unwrap();
    let kept = "SELECT count(*) FROM tower_idempotency_leases WHERE response IS NOT NULL";
    let pool = database.pool(1).await;
    assert_eq!(count(&pool, kept).await, 1);
    assert!(store.forget(&key).await.unwrap());
    assert_eq!(count(&pool, kept).await, 0);
}

#[tokio::test]
async fn a_claim_that_ends_now_is_lapsed_and_a_record_that_expires_now_is_absent() {
    let database = database!();
    let (store, pool) = (database.leases(1).await, database.pool(1).await);
    let key = fresh_key();
    claim(&store, &key, &terms()).await;
    let at = async |lease: i64, expires: i64| {
        sqlx::query(
            "UPDATE tower_idempotency_leases SET
                 lease_end = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $1,
                 expires = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $2",
        )
        .bind(lease)
        .bind(expires)
        .execute(&pool)
        .await
        .unwrap();
    };
    at(0, 60_000_000).await;
    assert!(matches!(reserve(&store, &key).await, Reservation::Unknown));
    at(-1, 0).await;
    assert!(store.inspect(&key).await.unwrap().is_none());
    assert!(!store.forget(&key).await.unwrap());
    let again = claim(&store, &key, &terms()).await;
    assert_eq!(again.attempt(), 1);
}

#[tokio::test]
async fn keys_that_differ_in_one_byte_are_two_keys() {
    let database = database!();
    let store = database.leases(1).await;
    for end in [0x00, 0x20, b'a', b'A', 0xff] {
        let mut bytes = [b'k'; 32];
        bytes[31] = end;
        claim(&store, &RecordKey::from_bytes(bytes), &terms()).await;
    }
    let rows = "SELECT count(DISTINCT record_key) FROM tower_idempotency_leases";
    assert_eq!(count(&database.pool(1).await, rows).await, 5);
}

#[tokio::test]
async fn what_was_freed_stays_free_when_the_clock_is_set_back() {
    let database = database!();
    let (pool, store) = (database.pool(1).await, database.leases(1).await);
    let execute = async |sql| {
        sqlx::query(sql).execute(&pool).await.unwrap();
    };
    sql_leases::what_was_freed_stays_free_when_the_clock_is_set_back(&store, execute).await;
}

#[tokio::test]
async fn a_record_written_over_an_expired_one_has_its_fence_and_nothing_else_of_it() {
    let database = database!();
    let (pool, store) = (database.pool(1).await, database.leases(1).await);
    let execute = async |sql| {
        sqlx::query(sql).execute(&pool).await.unwrap();
    };
    let count = async |sql| count(&pool, sql).await;
    sql_leases::a_record_written_over_an_expired_one_has_its_fence_and_nothing_else_of_it(
        &store, execute, count,
    )
    .await;
}
