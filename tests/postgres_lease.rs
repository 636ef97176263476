//! `postgres::LeaseStore` on a server. Effects are read through a second pool.
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod postgres_support;
mod servers;

use std::sync::Arc;

use postgres_support::*;
use tokio::{sync::Barrier, task::JoinSet};
use tower_idempotency::{
    RecordKey, StoreErrorKind,
    postgres::LeaseStore,
    store::{Nonce, RecordState, Reservation, Store, Takeover, Terms},
};

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
    let Some(database) = Database::new().await else {
        return;
    };
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

/// Whatever the isolation: the winner then completes, gives up, or does nothing for now.
#[tokio::test]
async fn one_of_many_claimers_wins_and_the_others_are_told_how_it_stands() {
    let Some(database) = Database::new().await else {
        return;
    };
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let setting = ("default_transaction_isolation", isolation);
        let stores = [
            LeaseStore::new(database.pool_with(5, setting).await),
            LeaseStore::new(database.pool_with(5, setting).await),
        ];
        for (claimers, key) in [2, 3, 5, 10, 20].map(|claimers| (claimers, fresh_key())) {
            let answers = race(&stores, &key, claimers).await;
            let (won, rest): (Vec<_>, Vec<_>) = answers
                .into_iter()
                .partition(|answer| matches!(answer, Reservation::Acquired(_)));
            assert_eq!(won.len(), 1, "{isolation}: {rest:?}");
            let busy = |answer: &Reservation| matches!(answer, Reservation::InFlight { .. });
            assert!(rest.iter().all(busy), "{isolation}: {rest:?}");
            let [Reservation::Acquired(claim)] = &won[..] else {
                panic!("{won:?}");
            };
            match claimers {
                2 | 10 => {
                    let saved = response("done");
                    stores[0].complete(claim, &saved, RETENTION).await.unwrap();
                    for answer in race(&stores, &key, claimers).await {
                        assert_replays(&answer, "done");
                    }
                }
                3 | 20 => {
                    stores[1].release(claim).await.unwrap();
                    let free = race(&stores, &key, claimers).await;
                    let won = |answer: &&Reservation| matches!(answer, Reservation::Acquired(_));
                    assert_eq!(free.iter().filter(won).count(), 1, "{isolation}: {free:?}");
                }
                _ => assert!(race(&stores, &key, claimers).await.iter().all(busy)),
            }
        }
    }
}

/// Reserves a key from several tasks at once, over both stores.
async fn race(stores: &[LeaseStore; 2], key: &RecordKey, claimers: usize) -> Vec<Reservation> {
    let barrier = Arc::new(Barrier::new(claimers));
    let mut tasks = JoinSet::new();
    for number in 0..claimers {
        let (store, barrier, key) = (stores[number % 2].clone(), Arc::clone(&barrier), *key);
        tasks.spawn(async move {
            barrier.wait().await;
            reserve(&store, &key).await
        });
    }
    tasks.join_all().await
}

#[tokio::test]
async fn of_many_who_take_over_one_does() {
    let Some(database) = Database::new().await else {
        return;
    };
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let setting = ("default_transaction_isolation", isolation);
        let store = LeaseStore::new(database.pool_with(10, setting).await);
        let key = fresh_key();
        let first = claim(&store, &key, &lapsing()).await;
        until_lapsed(&store, &key).await;
        let barrier = Arc::new(Barrier::new(10));
        let mut tasks = JoinSet::new();
        for _ in 0..10 {
            let (store, barrier) = (store.clone(), Arc::clone(&barrier));
            tasks.spawn(async move {
                barrier.wait().await;
                let again = terms().with_takeover(Takeover::RunAgain);
                store.reserve(&key, &fingerprint(1), &again).await.unwrap()
            });
        }
        let answers = tasks.join_all().await;
        let claims = answers.iter().filter_map(|answer| match answer {
            Reservation::Acquired(claim) => Some(claim),
            _ => None,
        });
        let claims: Vec<_> = claims.collect();
        assert_eq!(claims.len(), 1, "{answers:?}");
        assert_eq!(claims[0].attempt(), 2);
        assert!(claims[0].fence() > first.fence());
    }
}

#[tokio::test]
async fn a_lapsed_claim_is_taken_over_only_where_the_terms_say_so() {
    let Some(database) = Database::new().await else {
        return;
    };
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
    let Some(database) = Database::new().await else {
        return;
    };
    let store = database.leases(1).await;
    let key = fresh_key();
    let claim = claim(&store, &key, &lapsing()).await;
    until_lapsed(&store, &key).await;
    store.renew(&claim, LEASE).await.unwrap();
    let record = store.inspect(&key).await.unwrap().unwrap();
    assert!(matches!(record.state, RecordState::InFlight { lease_left } if lease_left <= LEASE));
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
    let Some(database) = Database::new().await else {
        return;
    };
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
    let Some(database) = Database::new().await else {
        return;
    };
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

#[tokio::test]
async fn a_lost_record_is_written_by_its_owner() {
    let Some(database) = Database::new().await else {
        return;
    };
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
    let Some(database) = Database::new().await else {
        return;
    };
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
    let Some(database) = Database::new().await else {
        return;
    };
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
async fn records_of_other_releases_are_told_from_damage() {
    let Some(database) = Database::new().await else {
        return;
    };
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
    let Reservation::Replay(saved) = reserve(&store, &damaged).await else {
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
async fn purging_takes_expired_records_only_and_no_more_than_it_may() {
    let Some(database) = Database::new().await else {
        return;
    };
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
    let Some(database) = Database::new().await else {
        return;
    };
    let pool = database.pool(1).await;
    sqlx::query(
        "INSERT INTO tower_idempotency_leases
             (record_key, fence, lease_end, expires, fingerprint_tag, attempt, state, fingerprint, nonce)
         SELECT sha256(number::text::bytea), 1, 1, number, 257, 1, 2, decode(repeat('01', 32), 'hex'),
             decode(repeat('02', 16), 'hex')
         FROM generate_series(1, $1) AS number",
    )
    .bind(ROWS)
    .execute(&pool)
    .await
    .unwrap();
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

#[tokio::test]
async fn keys_that_differ_in_one_byte_are_two_keys() {
    let Some(database) = Database::new().await else {
        return;
    };
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
async fn a_closed_pool_is_unavailable() {
    let Some(database) = Database::new().await else {
        return;
    };
    let pool = database.pool(1).await;
    let store = LeaseStore::new(pool.clone());
    store.ping().await.unwrap();
    pool.close().await;
    assert_kind(store.ping().await, StoreErrorKind::Unavailable);
}

#[tokio::test]
async fn a_database_that_only_reads_is_unavailable() {
    let Some(database) = Database::new().await else {
        return;
    };
    let setting = ("default_transaction_read_only", "on");
    let store = LeaseStore::new(database.pool_with(1, setting).await);
    let key = fresh_key();
    assert_kind(
        store.reserve(&key, &fingerprint(1), &terms()).await,
        StoreErrorKind::Unavailable,
    );
    assert!(store.inspect(&key).await.unwrap().is_none());
}
