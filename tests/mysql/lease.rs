//! The lease store.

use std::time::Duration;

use sqlx::AssertSqlSafe;
use tower_idempotency::{
    Fingerprint, RecordKey, StoreErrorKind, Tag,
    mysql::LeaseStore,
    store::{Nonce, RecordState, Reservation, Store, Takeover, Terms},
};

use super::database;
use crate::mysql_support::*;

fn lapsing() -> Terms {
    Terms::new(Nonce::random(), INSTANT, RETENTION)
}

async fn until_lapsed(store: &LeaseStore, key: &RecordKey) {
    until(|| async {
        let record = store.inspect(key).await.unwrap().unwrap();
        matches!(record.state, RecordState::Unknown)
    })
    .await;
}

#[tokio::test]
async fn a_completed_claim_is_replayed_by_another_process() {
    let database = database!();
    let (store, other) = (database.lease(2).await, database.lease(2).await);
    let key = fresh_key();
    let claim = claim(&store, &key, &terms()).await;
    assert!(matches!(
        reserve(&other, &key).await,
        Reservation::InFlight { .. }
    ));
    complete(&store, &claim, "done").await.unwrap();
    assert_replays(&reserve(&other, &key).await, "done");
    let mismatch = other.reserve(&key, &fingerprint(2), &terms()).await;
    assert!(matches!(mismatch, Ok(Reservation::Mismatch(stored)) if stored == fingerprint(1)));
}

#[tokio::test]
async fn each_call_may_be_repeated_with_its_nonce() {
    let database = database!();
    let store = database.lease(2).await;
    let (key, terms) = (fresh_key(), terms());
    let first = claim(&store, &key, &terms).await;
    for _ in 0..2 {
        let again = claim(&store, &key, &terms).await;
        assert_eq!((again.attempt(), again.fence()), (1, first.fence()));
        store.renew(&first, LEASE).await.unwrap();
    }
    for body in ["first", "second"] {
        complete(&store, &first, body).await.unwrap();
    }
    assert_replays(&reserve(&store, &key).await, "first");
    let replayed = store.reserve(&key, &fingerprint(1), &terms).await.unwrap();
    assert_replays(&replayed, "first");
    for settled in [
        store.renew(&first, LEASE).await,
        store.release(&first).await,
        store.abandon(&first, RETENTION).await,
    ] {
        assert_kind(settled, StoreErrorKind::LostClaim);
    }

    let left = claim(&store, &fresh_key(), &terms).await;
    store.abandon(&left, RETENTION).await.unwrap();
    store.abandon(&left, RETENTION * 2).await.unwrap();
    assert!(store.inspect(left.key()).await.unwrap().unwrap().expires_in <= RETENTION);
    assert_kind(
        complete(&store, &left, "late").await,
        StoreErrorKind::LostClaim,
    );
}

/// The lease of a repeated reservation counts anew, whether the row was written by this call or an earlier one.
#[tokio::test]
async fn a_repeated_reservation_gets_a_whole_lease() {
    let database = database!();
    let store = database.lease(2).await;
    let (key, terms) = (fresh_key(), lapsing());
    let first = claim(&store, &key, &terms).await;
    until_lapsed(&store, &key).await;
    let again = claim(&store, &key, &Terms::new(terms.nonce(), LEASE, RETENTION)).await;
    assert_eq!(again.fence(), first.fence());
    let record = store.inspect(&key).await.unwrap().unwrap();
    let RecordState::InFlight { lease_left, .. } = record.state else {
        panic!("{record:?}");
    };
    assert!(lease_left > LEASE / 2);
}

#[tokio::test]
async fn a_lapsed_claim_is_taken_over_only_where_the_terms_say_so() {
    let database = database!();
    let store = database.lease(2).await;
    let key = fresh_key();
    let first = claim(&store, &key, &lapsing()).await;
    until_lapsed(&store, &key).await;
    assert!(matches!(reserve(&store, &key).await, Reservation::Unknown));
    let second = claim(&store, &key, &terms().with_takeover(Takeover::RunAgain)).await;
    assert_eq!(second.attempt(), 2);
    assert!(second.fence() > first.fence());
    let record = store.inspect(&key).await.unwrap().unwrap();
    assert_eq!((record.attempt, record.fence), (2, second.fence()));

    for late in [
        store.renew(&first, LEASE).await,
        store.release(&first).await,
        store.abandon(&first, RETENTION).await,
        complete(&store, &first, "late").await,
    ] {
        assert_kind(late, StoreErrorKind::LostClaim);
    }
    complete(&store, &second, "second").await.unwrap();
    assert_replays(&reserve(&store, &key).await, "second");
    assert_kind(
        complete(&store, &first, "late").await,
        StoreErrorKind::LostClaim,
    );
}

/// An assignment of an UPDATE sees those to its left, or not: by a sql_mode of MariaDB.
#[tokio::test]
async fn renewing_keeps_the_retention_in_either_order_of_assignments() {
    for mode in ["", "SIMULTANEOUS_ASSIGNMENT"] {
        let database = database!();
        let sql =
            format!("SET @ignored = 0 /*M! , SESSION sql_mode = CONCAT(@@sql_mode, ',{mode}') */");
        let store = database.with(&sql).lease(1).await;
        let claim = claim(&store, &fresh_key(), &terms()).await;
        let lease = LEASE * 2;
        store.renew(&claim, lease).await.unwrap();
        let record = store.inspect(claim.key()).await.unwrap().unwrap();
        let (least, most) = (lease + RETENTION - LEASE / 2, lease + RETENTION);
        assert!(
            (least..=most).contains(&record.expires_in),
            "{mode}: {record:?}"
        );
        let RecordState::InFlight { lease_left, .. } = record.state else {
            panic!("{record:?}");
        };
        assert!(
            (LEASE..=lease).contains(&lease_left),
            "{mode}: {lease_left:?}"
        );
    }
}

#[tokio::test]
async fn a_released_key_is_free_and_its_fence_goes_on() {
    let database = database!();
    let store = database.lease(2).await;
    let key = fresh_key();
    let mut fence = 0;
    for _ in 0..20 {
        let claim = claim(&store, &key, &terms()).await;
        assert_eq!(claim.attempt(), 1);
        assert!(claim.fence() > fence);
        fence = claim.fence();
        store.release(&claim).await.unwrap();
        store.release(&claim).await.unwrap();
        assert!(store.inspect(&key).await.unwrap().is_none());
        store.purge_expired(10).await.unwrap();
    }
}

/// As after the server's clock was set back.
#[tokio::test]
async fn a_fence_ahead_of_the_clock_goes_on() {
    let database = database!();
    let outside = database.shop().await;
    let store = database.lease(1).await;
    let first = claim(&store, &fresh_key(), &terms()).await;
    store.release(&first).await.unwrap();
    let an_hour = "UPDATE tower_idempotency_leases SET fence = fence + 3600000000";
    sqlx::query(an_hour).execute(&outside).await.unwrap();
    let second = claim(&store, first.key(), &terms()).await;
    assert!(second.fence() > first.fence() + 3_600_000_000);
}

#[tokio::test]
async fn a_lost_record_is_written_by_its_owner_whether_its_row_is_there_or_not() {
    let database = database!();
    let (store, outside) = (database.lease(2).await, database.shop().await);
    for purged in [false, true] {
        let (done, left, free) = (fresh_key(), fresh_key(), fresh_key());
        let claims = [
            claim(&store, &done, &terms()).await,
            claim(&store, &left, &terms()).await,
            claim(&store, &free, &terms()).await,
        ];
        for key in [&done, &left, &free] {
            assert!(store.forget(key).await.unwrap());
            assert!(!store.forget(key).await.unwrap());
        }
        if purged {
            sqlx::query("DELETE FROM tower_idempotency_leases")
                .execute(&outside)
                .await
                .unwrap();
        }
        complete(&store, &claims[0], "done").await.unwrap();
        store.abandon(&claims[1], RETENTION).await.unwrap();
        store.release(&claims[2]).await.unwrap();
        assert_replays(&reserve(&store, &done).await, "done");
        assert!(matches!(reserve(&store, &left).await, Reservation::Unknown));
        assert!(matches!(
            reserve(&store, &free).await,
            Reservation::Acquired(_)
        ));
    }
}

/// At the very microsecond of its expiry a record is expired, for each statement.
#[tokio::test]
async fn a_record_is_expired_at_the_instant_of_its_expiry() {
    let database = database!();
    let (store, outside) = (database.lease(1).await, database.shop().await);
    let stopped = database
        .with("SET SESSION timestamp = 2000000000.5")
        .lease(1)
        .await;
    const NOW: i64 = 2_000_000_000_500_000;
    for (expires, is_live) in [(NOW - 1, false), (NOW, false), (NOW + 1, true)] {
        let key = fresh_key();
        let claimed = claim(&store, &key, &terms()).await;
        complete(&store, &claimed, "done").await.unwrap();
        let sql = format!(
            "UPDATE tower_idempotency_leases SET lease_end = {expires}, expires = {expires}"
        );
        sqlx::query(AssertSqlSafe(sql))
            .execute(&outside)
            .await
            .unwrap();
        assert_eq!(stopped.inspect(&key).await.unwrap().is_some(), is_live);
        let is_purged = stopped.purge_expired(10).await.unwrap() == 1;
        assert_eq!(
            is_purged,
            expires < NOW,
            "a fence of this microsecond is kept"
        );
        match reserve(&stopped, &key).await {
            Reservation::Replay { .. } if is_live => assert!(stopped.forget(&key).await.unwrap()),
            Reservation::Acquired(next) if !is_live => {
                assert!(is_purged || next.fence() > claimed.fence());
                assert!(stopped.forget(&key).await.unwrap());
            }
            other => panic!("{expires}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_transactions_record_is_expired_at_the_instant_of_its_expiry() {
    let database = database!();
    let (store, outside) = (database.transaction(1).await, database.shop().await);
    let stopped = database
        .with("SET SESSION timestamp = 2000000000.5")
        .transaction(1)
        .await;
    for (expires, is_live, is_purged) in [(-1, false, true), (0, false, false), (1, true, false)] {
        let key = fresh_key();
        let claimed = claim(&store, &key, &terms()).await;
        complete(&store, &claimed, "done").await.unwrap();
        let sql = format!(
            "UPDATE tower_idempotency_transactions SET expires = 2000000000500000 + {expires}"
        );
        sqlx::query(AssertSqlSafe(sql))
            .execute(&outside)
            .await
            .unwrap();
        assert_eq!(stopped.inspect(&key).await.unwrap().is_some(), is_live);
        assert_eq!(stopped.purge_expired(10).await.unwrap() == 1, is_purged);
        match reserve(&stopped, &key).await {
            Reservation::Replay { .. } if is_live => {}
            Reservation::Acquired(next) if !is_live => {
                assert!(is_purged || next.fence() > claimed.fence());
                stopped.release(&next).await.unwrap();
            }
            other => panic!("{expires}: {other:?}"),
        }
        assert_eq!(stopped.forget(&key).await.unwrap(), is_live);
    }
}

#[tokio::test]
async fn keys_that_differ_in_their_last_byte_are_different_keys() {
    let database = database!();
    let (lease, transaction) = (database.lease(2).await, database.transaction(6).await);
    for store in [&lease as &dyn Store, &transaction] {
        let mut claims = Vec::new();
        for end in [0x00, 0x20, b'a', b'A', 0xff] {
            let mut bytes = [b'k'; 32];
            bytes[31] = end;
            claims.push(claim(store, &RecordKey::from_bytes(bytes), &terms()).await);
        }
        for claim in &claims {
            complete(store, claim, "done").await.unwrap();
            assert_replays(&reserve(store, claim.key()).await, "done");
        }
    }
}

#[tokio::test]
async fn fingerprints_of_other_releases_are_compared_byte_by_byte() {
    let database = database!();
    let (lease, transaction) = (database.lease(2).await, database.transaction(2).await);
    for store in [&lease as &dyn Store, &transaction] {
        for tag in [0, 0x7fff, 0x8000, 0xffff] {
            let unknown = Fingerprint::new(Tag::from_u16(tag), [1; 32]);
            let key = fresh_key();
            let Reservation::Acquired(claimed) =
                store.reserve(&key, &unknown, &terms()).await.unwrap()
            else {
                panic!("not acquired");
            };
            complete(store, &claimed, "done").await.unwrap();
            let replay = store.reserve(&key, &unknown, &terms()).await.unwrap();
            assert_replays(&replay, "done");
            let mismatch = reserve(store, &key).await;
            assert!(matches!(mismatch, Reservation::Mismatch(stored) if stored == unknown));
        }
    }
}

/// By raw SQL, as another release may have written them.
#[tokio::test]
async fn responses_of_other_releases_are_read_or_refused() {
    let database = database!();
    let outside = database.shop().await;
    let (lease, transaction) = (database.lease(2).await, database.transaction(2).await);
    for (store, table) in [
        (&lease as &dyn Store, "tower_idempotency_leases"),
        (&transaction, "tower_idempotency_transactions"),
    ] {
        let key = fresh_key();
        let claimed = claim(store, &key, &terms()).await;
        complete(store, &claimed, "done").await.unwrap();
        let set = async |response: &'static str| {
            let sql = format!("UPDATE {table} SET response = {response}");
            sqlx::query(AssertSqlSafe(sql))
                .execute(&outside)
                .await
                .unwrap();
        };
        set("CONCAT(x'ff', SUBSTRING(response, 2))").await;
        for _ in 0..2 {
            let newer = store.reserve(&key, &fingerprint(1), &terms()).await;
            assert_kind(newer, StoreErrorKind::Other);
        }
        set("CONCAT(x'01', SUBSTRING(response, 2))").await;
        assert_replays(&reserve(store, &key).await, "done");
        set("SUBSTRING(response, 1, 3)").await;
        let Reservation::Replay {
            response: corrupt, ..
        } = reserve(store, &key).await
        else {
            panic!("not a replay");
        };
        assert!(corrupt.is_tombstone());
    }
}

#[tokio::test]
async fn long_times_are_kept_and_none_overflows() {
    let database = database!();
    let (lease, transaction) = (database.lease(2).await, database.transaction(2).await);
    for store in [&lease as &dyn Store, &transaction] {
        let forever =
            Terms::new(Nonce::random(), Duration::MAX, Duration::MAX).with_run_limit(Duration::MAX);
        let claimed = claim(store, &fresh_key(), &forever).await;
        let saved = response("done");
        store
            .complete(&claimed, &saved, Duration::MAX)
            .await
            .unwrap();
        let record = store.inspect(claimed.key()).await.unwrap().unwrap();
        assert!(record.expires_in > Duration::from_secs(1_000_000_000_000));
    }
}

#[tokio::test]
async fn what_was_freed_stays_free_when_the_clock_is_set_back() {
    let database = database!();
    let (pool, store) = (database.pool(1).await, database.lease(1).await);
    let execute = async |sql| {
        sqlx::query(sql).execute(&pool).await.unwrap();
    };
    sql_leases::what_was_freed_stays_free_when_the_clock_is_set_back(&store, execute).await;
}

#[tokio::test]
async fn a_record_written_over_an_expired_one_has_its_fence_and_nothing_else_of_it() {
    let database = database!();
    let (pool, store) = (database.pool(1).await, database.lease(1).await);
    let execute = async |sql| {
        sqlx::query(sql).execute(&pool).await.unwrap();
    };
    let count = async |sql| count(&pool, sql).await;
    sql_leases::a_record_written_over_an_expired_one_has_its_fence_and_nothing_else_of_it(
        &store, execute, count,
    )
    .await;
}
