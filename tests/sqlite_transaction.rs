//! `sqlite::TransactionStore` on a database file. Effects are read through a second pool.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod sqlite_support;

use std::{error::Error as _, sync::Arc, time::Duration};

use sqlite_support::*;
use sqlx::{Sqlite, SqlitePool, sqlite::SqliteJournalMode};
use tokio::{sync::Barrier, task::JoinSet};
use tower_idempotency::{
    StoreErrorKind, Tx,
    sqlite::TransactionStore,
    store::{Claim, RecordState, Reservation, Store},
};

async fn store_in(file: &File) -> TransactionStore {
    store_on(shop(file, 4).await).await
}

async fn store_on(pool: SqlitePool) -> TransactionStore {
    let store = TransactionStore::new(pool);
    store.migrate().await.unwrap();
    store
}

fn take(claim: &Claim) -> Tx<Sqlite> {
    Tx::take(claim.attachments()).unwrap()
}

async fn charge(tx: &mut Tx<Sqlite>, amount: i64) {
    sqlx::query("INSERT INTO charges (amount) VALUES (?)")
        .bind(amount)
        .execute(&mut **tx)
        .await
        .unwrap();
}

#[tokio::test]
async fn writes_and_response_commit_together() {
    let file = File::wal();
    let (store, outside) = (store_in(&file).await, file.pool(1).await);
    let key = fresh_key();
    let claim = claim(&store, &key, &terms()).await;
    assert_eq!(claim.attempt(), 1);
    let mut tx = take(&claim);
    charge(&mut tx, 10).await;
    drop(tx);
    assert_eq!(
        count(&outside, CHARGES).await,
        0,
        "not before the response is saved"
    );
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_eq!(count(&outside, CHARGES).await, 1);

    let other = store_in(&file).await;
    assert_replays(&reserve(&other, &key).await, "done");
    assert_replays(&reserve(&store, &key).await, "done");
    let mismatch = other
        .reserve(&key, &fingerprint(2), &terms())
        .await
        .unwrap();
    assert!(matches!(mismatch, Reservation::Mismatch(stored) if stored == fingerprint(1)));
    let record = other.inspect(&key).await.unwrap().unwrap();
    assert!(matches!(record.state, RecordState::Completed(_)));
    assert_eq!((record.fence, record.attempt), (claim.fence(), 1));
    assert!(record.expires_in <= RETENTION);
}

#[tokio::test]
async fn giving_up_rolls_everything_back_and_a_retry_runs_at_once() {
    let file = File::wal();
    let (store, outside) = (store_in(&file).await, file.pool(1).await);
    let key = fresh_key();
    let mut fence = 0;
    for abandons in [false, true] {
        let claim = claim(&store, &key, &terms()).await;
        assert!(
            claim.fence() > fence,
            "a claim that left no row counts all the same"
        );
        fence = claim.fence();
        charge(&mut take(&claim), 10).await;
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
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_kind(store.release(&claim).await, StoreErrorKind::LostClaim);
    assert_kind(
        store.abandon(&claim, RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test]
async fn one_connection_is_enough_and_duplicates_need_none() {
    let file = File::wal();
    let store = store_on(shop(&file, 1).await).await;
    let (key, terms) = (fresh_key(), terms());
    let claim = claim(&store, &key, &terms).await;
    let mut tx = take(&claim);
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
    charge(&mut tx, 10).await;
    drop(tx);
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
    assert_eq!(count(&file.pool(1).await, CHARGES).await, 1);
}

#[tokio::test]
async fn of_equal_reservations_in_two_processes_one_runs_and_the_others_replay() {
    let file = File::wal();
    let stores = [store_in(&file).await, store_in(&file).await];
    let key = fresh_key();
    let barrier = Arc::new(Barrier::new(50));
    let mut tasks = JoinSet::new();
    for number in 0..50 {
        let (store, barrier) = (stores[number % 2].clone(), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            match reserve(&store, &key).await {
                Reservation::Acquired(claim) => {
                    charge(&mut take(&claim), 10).await;
                    store
                        .complete(&claim, &response("done"), RETENTION)
                        .await
                        .unwrap();
                    true
                }
                Reservation::InFlight { .. } => false,
                other => {
                    assert_replays(&other, "done");
                    false
                }
            }
        });
    }
    let ran = tasks
        .join_all()
        .await
        .into_iter()
        .filter(|ran| *ran)
        .count();
    assert_eq!(ran, 1);
    assert_eq!(count(&file.pool(1).await, CHARGES).await, 1);
}

#[tokio::test]
async fn parallel_claims_on_one_file_never_meet_a_busy_database() {
    for mode in [SqliteJournalMode::Wal, SqliteJournalMode::Delete] {
        let file = File::new(mode);
        let _migrated = store_in(&file).await;
        let barrier = Arc::new(Barrier::new(20));
        let mut tasks = JoinSet::new();
        for amount in 1..=20 {
            let store = TransactionStore::new(file.pool(1).await);
            let barrier = Arc::clone(&barrier);
            tasks.spawn(async move {
                barrier.wait().await;
                let claim = claim(&store, &fresh_key(), &terms()).await;
                charge(&mut take(&claim), amount).await;
                store
                    .complete(&claim, &response("done"), RETENTION)
                    .await
                    .unwrap();
            });
        }
        tasks.join_all().await;
        assert_eq!(count(&file.pool(1).await, CHARGES).await, 20);
    }
}

#[tokio::test]
async fn claims_of_one_process_queue_without_holding_a_connection() {
    let file = File::wal();
    let store = store_on(shop(&file, 2).await).await;
    let first = claim(&store, &fresh_key(), &terms()).await;
    let done = fresh_key();
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let store = store.clone();
        tasks.spawn(async move {
            let claim = claim(&store, &fresh_key(), &terms()).await;
            store.release(&claim).await.unwrap();
        });
    }
    // Each of the ten has had its turn on the runtime, and the second connection is still there for reads.
    for _ in 0..100 {
        assert!(store.inspect(&done).await.unwrap().is_none());
    }
    store.release(&first).await.unwrap();
    tasks.join_all().await;
}

#[tokio::test]
async fn a_lock_that_outlasts_the_busy_timeout_is_unavailable_and_claims_nothing() {
    let file = File::wal();
    let other = store_in(&file).await;
    let store = TransactionStore::new(file.pool_with(2, Duration::ZERO).await);
    let key = fresh_key();
    let blocking = claim(&other, &fresh_key(), &terms()).await;
    assert_kind(
        store.reserve(&key, &fingerprint(1), &terms()).await,
        StoreErrorKind::Unavailable,
    );
    other.release(&blocking).await.unwrap();
    claim(&store, &key, &terms()).await;
}

#[tokio::test]
async fn an_expired_record_is_overwritten_and_a_live_one_is_not() {
    let file = File::wal();
    let (store, outside) = (store_in(&file).await, file.pool(1).await);
    let key = fresh_key();
    let old = claim(&store, &key, &terms()).await;
    store
        .complete(&old, &response("old"), INSTANT)
        .await
        .unwrap();
    until(|| async { store.inspect(&key).await.unwrap().is_none() }).await;
    let new = claim(&store, &key, &terms()).await;
    assert!(new.fence() > old.fence());
    store
        .complete(&new, &response("new"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "new");

    // Another's record, as it can only come by writing into our table: the loser's writes go with it.
    let raced = fresh_key();
    let loser = claim(&store, &raced, &terms()).await;
    let mut tx = take(&loser);
    charge(&mut tx, 10).await;
    sqlx::query(
        "INSERT INTO tower_idempotency_transactions
         SELECT ?, fingerprint_tag, fingerprint, nonce, fence, expires, response FROM tower_idempotency_transactions",
    )
    .bind(&raced.as_bytes()[..])
    .execute(&mut *tx)
    .await
    .unwrap();
    drop(tx);
    assert_kind(
        store.complete(&loser, &response("lost"), RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert_eq!(count(&outside, CHARGES).await, 0);
}

#[tokio::test]
async fn operators_can_forget_and_purge() {
    let file = File::wal();
    let (store, outside) = (store_in(&file).await, file.pool(1).await);
    let (kept, expired) = (fresh_key(), fresh_key());
    for (key, retention) in [(&kept, RETENTION), (&expired, INSTANT)] {
        let claim = claim(&store, key, &terms()).await;
        store
            .complete(&claim, &response("done"), retention)
            .await
            .unwrap();
    }
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

/// Without WAL a commit waits for readers.
#[tokio::test]
async fn a_key_that_could_not_be_forgotten_is_not_reported_as_forgotten() {
    let file = File::new(SqliteJournalMode::Delete);
    let store = store_on(file.pool_with(1, INSTANT).await).await;
    let key = fresh_key();
    let claimed = claim(&store, &key, &terms()).await;
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    let reader = file.pool(1).await;
    let mut reading = reader.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM tower_idempotency_transactions")
        .execute(&mut *reading)
        .await
        .unwrap();
    assert_kind(store.forget(&key).await, StoreErrorKind::Unavailable);
    reading.rollback().await.unwrap();
    assert!(store.forget(&key).await.unwrap());
}

#[tokio::test]
async fn a_large_purge_lets_claims_in_between() {
    const ROWS: i64 = 20_000;
    let file = File::wal();
    let (store, outside) = (store_in(&file).await, file.pool(1).await);
    sqlx::query(
        "WITH RECURSIVE numbers (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
         INSERT INTO tower_idempotency_transactions
         SELECT randomblob(32), 1, zeroblob(32), zeroblob(16), 1, 1, NULL FROM numbers",
    )
    .bind(ROWS)
    .execute(&outside)
    .await
    .unwrap();
    let left = async || {
        count(
            &outside,
            "SELECT count(*) FROM tower_idempotency_transactions",
        )
        .await
    };
    let purging = tokio::spawn({
        let store = store.clone();
        async move { store.purge_expired(u32::MAX).await }
    });
    until(async || left().await < ROWS).await;
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    assert_ne!(left().await, 0);
    store.release(&claimed).await.unwrap();
    assert_eq!(purging.await.unwrap().unwrap(), ROWS.unsigned_abs());
}

#[tokio::test]
async fn an_operator_with_nothing_to_remove_does_not_wait_for_a_running_handler() {
    let file = File::wal();
    let store = store_in(&file).await;
    let claim = claim(&store, &fresh_key(), &terms()).await;
    assert!(!store.forget(claim.key()).await.unwrap());
    assert_eq!(store.purge_expired(10).await.unwrap(), 0);
    store.ping().await.unwrap();
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, claim.key()).await, "done");
}

#[tokio::test]
async fn a_claim_without_its_transaction_can_settle_nothing_of_anothers() {
    let file = File::wal();
    let store = store_in(&file).await;
    let running = claim(&store, &fresh_key(), &terms()).await;
    let foreign = Claim::new(*running.key(), fingerprint(1), terms().nonce(), 1, 1);
    assert_kind(
        store
            .complete(&foreign, &response("foreign"), RETENTION)
            .await,
        StoreErrorKind::LostClaim,
    );
    assert_kind(store.release(&foreign).await, StoreErrorKind::LostClaim);
    store
        .complete(&running, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_kind(
        store
            .complete(&foreign, &response("foreign"), RETENTION)
            .await,
        StoreErrorKind::LostClaim,
    );
    assert_replays(&reserve(&store, running.key()).await, "done");
}

#[tokio::test]
async fn a_dropped_claim_rolls_back_and_frees_its_key() {
    let file = File::wal();
    let store = store_on(shop(&file, 1).await).await;
    let key = fresh_key();
    let dropped = claim(&store, &key, &terms()).await;
    charge(&mut take(&dropped), 10).await;
    drop(dropped);
    until(|| async { !matches!(reserve(&store, &key).await, Reservation::InFlight { .. }) }).await;
    assert_eq!(count(&file.pool(1).await, CHARGES).await, 0);
}

#[tokio::test]
async fn an_interrupted_run_costs_its_connection() {
    let file = File::wal();
    let pool = shop(&file, 1).await;
    let store = store_on(pool.clone()).await;
    for (interrupted, survivors) in [(false, 1), (true, 0)] {
        // A temporary table lives as long as its connection.
        sqlx::query("CREATE TEMP TABLE IF NOT EXISTS mark (x)")
            .execute(&pool)
            .await
            .unwrap();
        let mut claimed = claim(&store, &fresh_key(), &terms()).await;
        charge(&mut take(&claimed), 10).await;
        if interrupted {
            claimed.set_interrupted();
        }
        store.abandon(&claimed, RETENTION).await.unwrap();
        let marks = "SELECT count(*) FROM sqlite_temp_master";
        assert_eq!(count(&pool, marks).await, survivors);
    }
    assert_eq!(count(&file.pool(1).await, CHARGES).await, 0);
}

#[tokio::test]
async fn a_refused_commit_is_rolled_back_and_says_so_again_and_again() {
    let file = File::wal();
    let (store, outside) = (store_in(&file).await, file.pool(1).await);
    let key = fresh_key();
    let claimed = claim(&store, &key, &terms()).await;
    sqlx::query("INSERT INTO charges (amount, account) VALUES (10, 404)")
        .execute(&mut *take(&claimed))
        .await
        .unwrap();
    let saved = response("done");
    let complete = || store.complete(&claimed, &saved, RETENTION);
    assert_kind(complete().await, StoreErrorKind::RolledBack);
    assert_kind(complete().await, StoreErrorKind::RolledBack);
    store.release(&claimed).await.unwrap();
    assert_eq!(count(&outside, CHARGES).await, 0);

    let next = claim(&store, &key, &terms()).await;
    store
        .complete(&next, &response("next"), RETENTION)
        .await
        .unwrap();
    assert_kind(complete().await, StoreErrorKind::LostClaim);
}

#[tokio::test]
async fn settling_again_reads_the_truth_under_the_lock_or_says_that_it_is_busy() {
    let file = File::wal();
    let other = store_in(&file).await;
    let store = TransactionStore::new(file.pool_with(2, Duration::ZERO).await);
    let key = fresh_key();
    let done = claim(&store, &key, &terms()).await;
    store
        .complete(&done, &response("done"), RETENTION)
        .await
        .unwrap();
    // The same claim, as it is known after its transaction is out of sight.
    let bare = Claim::new(key, fingerprint(1), done.nonce(), 1, done.fence());
    store
        .complete(&bare, &response("other"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
    assert_kind(store.release(&bare).await, StoreErrorKind::LostClaim);

    let blocking = claim(&other, &fresh_key(), &terms()).await;
    store
        .complete(&bare, &response("other"), RETENTION)
        .await
        .unwrap();
    // Only that there is no record needs the lock.
    let gone = Claim::new(fresh_key(), fingerprint(1), done.nonce(), 1, done.fence());
    for told in [StoreErrorKind::OutcomeUnknown, StoreErrorKind::RolledBack] {
        assert_kind(
            store.complete(&gone, &response("other"), RETENTION).await,
            told,
        );
        drop(other.release(&blocking).await);
    }
}

#[tokio::test]
async fn a_second_complete_waits_for_the_first_and_agrees_with_it() {
    let file = File::new(SqliteJournalMode::Delete);
    let _migrated = store_in(&file).await;
    let store = TransactionStore::new(file.pool_with(2, Duration::ZERO).await);
    let claim = claim(&store, &fresh_key(), &terms()).await;
    charge(&mut take(&claim), 10).await;
    // Without WAL a reader keeps COMMIT from going through.
    let reader = file.pool_with(1, Duration::ZERO).await;
    let mut reading = reader.begin().await.unwrap();
    sqlx::query(CHARGES).fetch_one(&mut *reading).await.unwrap();
    let late_reader = file.pool_with(1, Duration::ZERO).await;
    let complete = |body| {
        let (store, claim) = (store.clone(), claim.clone());
        tokio::spawn(async move { store.complete(&claim, &response(body), RETENTION).await })
    };
    let first = complete("first");
    // A COMMIT that was refused keeps new readers out: it has been tried by then.
    until(|| async { sqlx::query(CHARGES).fetch_one(&late_reader).await.is_err() }).await;
    let second = complete("second");
    assert!(!first.is_finished());
    reading.rollback().await.unwrap();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert_replays(&reserve(&store, claim.key()).await, "first");
    assert_eq!(count(&reader, CHARGES).await, 1);
}

#[tokio::test]
async fn a_server_that_starts_does_not_wait_for_the_handlers_of_another() {
    let file = File::wal();
    let running = store_in(&file).await;
    let claim = claim(&running, &fresh_key(), &terms()).await;

    let starting = TransactionStore::new(file.pool_with(1, INSTANT).await);
    starting.migrate().await.unwrap();
    starting.ping().await.unwrap();

    running.release(&claim).await.unwrap();
}

#[tokio::test]
async fn migrating_twice_or_by_the_shipped_file_changes_nothing() {
    let file = File::wal();
    let store = store_in(&file).await;
    let key = fresh_key();
    let claimed = claim(&store, &key, &terms()).await;
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    sqlx::raw_sql(include_str!("../src/store/sqlite/transaction.sql"))
        .execute(&file.pool(1).await)
        .await
        .unwrap();
    store.migrate().await.unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test]
async fn a_missing_table_says_what_to_do_and_leaves_nothing_behind() {
    let file = File::wal();
    let store = TransactionStore::new(shop(&file, 1).await);
    let key = fresh_key();
    for _ in 0..2 {
        let error = store
            .reserve(&key, &fingerprint(1), &terms())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other);
        assert!(error.source().unwrap().to_string().contains("migrate()"));
        assert_kind(store.check().await, StoreErrorKind::Other);
    }
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    claim(&store, &key, &terms()).await;
}

/// As after the clock was set back.
#[tokio::test]
async fn a_fence_ahead_of_the_clock_goes_on() {
    let file = File::wal();
    let (pool, store, key) = (file.pool(1).await, store_in(&file).await, fresh_key());
    let first = claim(&store, &key, &terms()).await;
    store
        .complete(&first, &response("done"), RETENTION)
        .await
        .unwrap();
    let ahead = "UPDATE tower_idempotency_transactions SET fence = fence + 3600000000, expires = 1";
    sqlx::query(ahead).execute(&pool).await.unwrap();
    let next = claim(&store, &key, &terms()).await;
    assert!(next.fence() > first.fence() + 3_600_000_000);
    store.release(&next).await.unwrap();
}
