//! The transaction store.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor};
use tower_idempotency::{
    StoreErrorKind,
    mysql::TransactionStore,
    store::{Claim, RecordState, Reservation, Store},
};

use super::database;
use crate::mysql_support::*;

async fn charge(claim: &Claim, amount: i64) {
    sqlx::query("INSERT INTO charges VALUES (?)")
        .bind(amount)
        .execute(&mut *take(claim))
        .await
        .unwrap();
}

#[tokio::test]
async fn writes_and_response_commit_together() {
    let database = database!();
    let outside = database.shop().await;
    let (store, other) = (database.transaction(2).await, database.transaction(2).await);
    let key = fresh_key();
    let claim = claim(&store, &key, &terms()).await;
    assert_eq!(claim.attempt(), 1);
    charge(&claim, 10).await;
    assert_eq!(
        count(&outside, CHARGES).await,
        0,
        "not before the response is saved"
    );
    complete(&store, &claim, "done").await.unwrap();
    assert_eq!(count(&outside, CHARGES).await, 1);

    assert_replays(&reserve(&other, &key).await, "done");
    assert_replays(&reserve(&store, &key).await, "done");
    let mismatch = other.reserve(&key, &fingerprint(2), &terms()).await;
    assert!(matches!(mismatch, Ok(Reservation::Mismatch(stored)) if stored == fingerprint(1)));
    let record = other.inspect(&key).await.unwrap().unwrap();
    assert!(matches!(record.state, RecordState::Completed(_)));
    assert_eq!((record.fence, record.attempt), (claim.fence(), 1));
    assert!(record.expires_in <= RETENTION);
}

#[tokio::test]
async fn giving_up_rolls_everything_back_and_a_retry_runs_at_once() {
    let database = database!();
    let outside = database.shop().await;
    let store = database.transaction(2).await;
    let key = fresh_key();
    let mut fence = 0;
    for abandons in [false, true] {
        let claim = claim(&store, &key, &terms()).await;
        assert!(
            claim.fence() > fence,
            "a claim that left no row counts all the same"
        );
        fence = claim.fence();
        charge(&claim, 10).await;
        for _ in 0..2 {
            if abandons {
                store.abandon(&claim, RETENTION).await.unwrap();
            } else {
                store.release(&claim).await.unwrap();
            }
        }
        store.renew(&claim, LEASE).await.unwrap();
        assert!(store.inspect(&key).await.unwrap().is_none());
        assert_eq!(count(&outside, CHARGES).await, 0);
    }
    let claim = claim(&store, &key, &terms()).await;
    complete(&store, &claim, "done").await.unwrap();
    assert_kind(store.release(&claim).await, StoreErrorKind::LostClaim);
    assert_kind(
        store.abandon(&claim, RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test]
async fn one_connection_is_enough_and_duplicates_need_none() {
    let database = database!();
    let outside = database.shop().await;
    let store = database.transaction(1).await;
    let (key, terms) = (fresh_key(), terms());
    let claim = claim(&store, &key, &terms).await;
    assert!(matches!(
        reserve(&store, &key).await,
        Reservation::InFlight { .. }
    ));
    let again = store.reserve(&key, &fingerprint(1), &terms).await.unwrap();
    assert!(
        matches!(again, Reservation::InFlight { .. }),
        "never two for one nonce"
    );
    let mismatch = store.reserve(&key, &fingerprint(2), &terms).await.unwrap();
    assert!(matches!(mismatch, Reservation::Mismatch(stored) if stored == fingerprint(1)));
    charge(&claim, 10).await;
    for _ in 0..2 {
        complete(&store, &claim, "done").await.unwrap();
    }
    assert_replays(&reserve(&store, &key).await, "done");
    assert_eq!(count(&outside, CHARGES).await, 1);
}

/// Its handler runs for as long as it likes: nobody waits for the row's lock.
#[tokio::test]
async fn a_duplicate_in_another_process_is_told_at_once() {
    let database = database!().with("SET SESSION innodb_lock_wait_timeout = 1000");
    let (store, other) = (database.transaction(1).await, database.transaction(1).await);
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    let answers = async {
        for byte in [1, 1, 2] {
            let answer = other
                .reserve(claimed.key(), &fingerprint(byte), &terms())
                .await;
            assert!(
                matches!(answer, Ok(Reservation::InFlight { .. })),
                "{answer:?}"
            );
        }
    };
    tokio::time::timeout(Duration::from_secs(60), answers)
        .await
        .unwrap();
    // On its one connection, which waits for nothing.
    let next = claim(&other, &fresh_key(), &terms()).await;
    complete(&other, &next, "next").await.unwrap();
    complete(&store, &claimed, "done").await.unwrap();
    assert_replays(&reserve(&other, claimed.key()).await, "done");
}

#[tokio::test]
async fn an_expired_record_is_overwritten() {
    let database = database!();
    let store = database.transaction(2).await;
    let key = fresh_key();
    let mut fence = 0;
    for body in ["first", "second", "third"] {
        let claimed = claim(&store, &key, &terms()).await;
        assert!(claimed.fence() > fence);
        fence = claimed.fence();
        store
            .complete(&claimed, &response(body), INSTANT)
            .await
            .unwrap();
        until(|| async { store.inspect(&key).await.unwrap().is_none() }).await;
    }
    let last = claim(&store, &key, &terms()).await;
    complete(&store, &last, "last").await.unwrap();
    assert_replays(&reserve(&store, &key).await, "last");
}

#[tokio::test]
async fn a_claim_without_its_transaction_can_settle_nothing_of_anothers() {
    let database = database!();
    let store = database.transaction(2).await;
    let running = claim(&store, &fresh_key(), &terms()).await;
    let foreign = Claim::new(*running.key(), fingerprint(1), terms().nonce(), 1, 1);
    assert_kind(
        complete(&store, &foreign, "foreign").await,
        StoreErrorKind::LostClaim,
    );
    assert_kind(store.release(&foreign).await, StoreErrorKind::LostClaim);
    complete(&store, &running, "done").await.unwrap();
    assert_kind(
        complete(&store, &foreign, "foreign").await,
        StoreErrorKind::LostClaim,
    );
    assert_replays(&reserve(&store, running.key()).await, "done");
}

/// Where a stranger has left a transaction in the pool that has read before: what it can't see yet is not taken for absent, nor
/// for an error.
#[tokio::test]
async fn settling_again_reads_the_truth_on_a_session_with_an_old_snapshot() {
    let database = database!();
    let isolated = "SET @ignored = 0 /*M!101108 , SESSION innodb_snapshot_isolation = ON */";
    let pool = database.clone().with(isolated).pool(1).await;
    let (store, other) = (
        TransactionStore::new(pool.clone()),
        database.transaction(1).await,
    );
    let claimed = claim(&other, &fresh_key(), &terms()).await;
    run(&mut pool.acquire().await.unwrap(), "START TRANSACTION")
        .await
        .unwrap();
    let records = "SELECT count(*) FROM tower_idempotency_transactions";
    assert_eq!(count(&pool, records).await, 0);
    complete(&other, &claimed, "done").await.unwrap();
    let foreign = Claim::new(
        *claimed.key(),
        fingerprint(1),
        claimed.nonce(),
        1,
        claimed.fence(),
    );
    complete(&store, &foreign, "done").await.unwrap();
    assert_eq!(count(&pool, records).await, 1, "no old transaction is left");
}

#[tokio::test]
async fn settling_again_reads_the_truth_under_the_lock_or_says_that_it_is_busy() {
    let database = database!();
    let (store, other) = (database.transaction(1).await, database.transaction(1).await);
    let key = fresh_key();
    let done = claim(&store, &key, &terms()).await;
    complete(&store, &done, "done").await.unwrap();
    // The same claim, as it is known after its transaction is out of sight.
    let bare = Claim::new(key, fingerprint(1), done.nonce(), 1, done.fence());
    complete(&store, &bare, "other").await.unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
    assert_kind(store.release(&bare).await, StoreErrorKind::LostClaim);

    assert!(store.forget(&key).await.unwrap());
    let blocking = claim(&other, &key, &terms()).await;
    assert_kind(
        complete(&store, &bare, "other").await,
        StoreErrorKind::OutcomeUnknown,
    );
    other.release(&blocking).await.unwrap();
    assert_kind(
        complete(&store, &bare, "other").await,
        StoreErrorKind::RolledBack,
    );
    store.release(&bare).await.unwrap();
}

/// As a replay in another process does while it looks, or who deletes the row.
#[tokio::test]
async fn a_finished_key_is_answered_while_another_session_has_its_row() {
    let database = database!();
    let outside = database.shop().await;
    let (store, other) = (database.transaction(1).await, database.transaction(1).await);
    let done = claim(&store, &fresh_key(), &terms()).await;
    complete(&store, &done, "done").await.unwrap();
    let bare = Claim::new(*done.key(), fingerprint(1), done.nonce(), 1, done.fence());
    for lock in ["LOCK IN SHARE MODE", "FOR UPDATE"] {
        let mut holder = outside.begin().await.unwrap();
        let sql = format!("SELECT * FROM tower_idempotency_transactions {lock}");
        holder.execute(AssertSqlSafe(sql)).await.unwrap();
        for store in [&store, &other] {
            assert_replays(&reserve(store, done.key()).await, "done");
            let mismatch = store.reserve(done.key(), &fingerprint(2), &terms()).await;
            assert!(
                matches!(mismatch.unwrap(), Reservation::Mismatch(stored) if stored == fingerprint(1))
            );
            complete(store, &bare, "other").await.unwrap();
        }
        holder.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_claim_rolls_back_and_frees_its_key() {
    let database = database!();
    let outside = database.shop().await;
    let store = database.transaction(1).await;
    let key = fresh_key();
    let dropped = claim(&store, &key, &terms()).await;
    charge(&dropped, 10).await;
    drop(dropped);
    until(|| async { !matches!(reserve(&store, &key).await, Reservation::InFlight { .. }) }).await;
    assert_eq!(count(&outside, CHARGES).await, 0);
}

#[tokio::test]
async fn an_interrupted_run_costs_its_connection() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(1).await;
    let store = TransactionStore::new(pool.clone());
    store.migrate().await.unwrap();
    for interrupted in [false, true] {
        let id = "SELECT CONNECTION_ID()";
        let before = count(&pool, id).await;
        let mut claimed = claim(&store, &fresh_key(), &terms()).await;
        charge(&claimed, 10).await;
        if interrupted {
            claimed.set_interrupted();
        }
        store.abandon(&claimed, RETENTION).await.unwrap();
        assert_eq!(count(&pool, id).await != before, interrupted);
    }
    assert_eq!(count(&outside, CHARGES).await, 0);
}

/// A process that was stopped keeps its connections, and the server can't tell.
#[tokio::test]
async fn a_frozen_process_does_not_hold_its_key_for_ever() {
    let database = database!();
    let outside = database.shop().await;
    let (frozen, other) = (database.transaction(1).await, database.transaction(1).await);
    let short = terms().with_run_limit(Duration::from_millis(700));
    let stuck = claim(&frozen, &fresh_key(), &short).await;
    charge(&stuck, 10).await;
    let Reservation::Acquired(next) = after_flight(&other, stuck.key()).await else {
        panic!("not acquired");
    };
    charge(&next, 20).await;
    complete(&other, &next, "next").await.unwrap();
    assert_kind(
        complete(&frozen, &stuck, "late").await,
        StoreErrorKind::RolledBack,
    );
    assert_kind(
        complete(&frozen, &stuck, "late").await,
        StoreErrorKind::LostClaim,
    );
    assert_eq!(count(&outside, "SELECT sum(amount) FROM charges").await, 20);
    assert_replays(&reserve(&frozen, stuck.key()).await, "next");
}

#[tokio::test]
async fn the_same_key_in_another_table_is_another_one() {
    let database = database!();
    let store = database.transaction(4).await;
    let other = store.clone().with_table("other".parse().unwrap());
    other.migrate().await.unwrap();
    let key = fresh_key();
    let running = claim(&store, &key, &terms()).await;
    let beside = claim(&other, &key, &terms()).await;
    other
        .complete(&beside, &response("beside"), RETENTION)
        .await
        .unwrap();
    store
        .complete(&running, &response("running"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "running");
    assert_replays(&reserve(&other, &key).await, "beside");
}
