//! `postgres::TransactionStore` on a server. Effects are read through a second pool.
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

use std::{error::Error as _, sync::Arc, time::Duration};

use postgres_support::*;
use sqlx::PgPool;
use tokio::{sync::Barrier, task::JoinSet};
use tower_idempotency::{
    RecordKey, StoreErrorKind,
    postgres::TransactionStore,
    store::{Claim, RecordState, Reservation, Store},
};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

#[tokio::test]
async fn writes_and_response_commit_together() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, outside) = (database.transactions(2).await, database.pool(1).await);
    let key = fresh_key();
    let claim = claim(&store, &key, &terms()).await;
    assert_eq!(claim.attempt(), 1);
    charge(&mut take(&claim), 10).await;
    assert_eq!(count(&outside, CHARGES).await, 0, "not before the response");
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_eq!(count(&outside, CHARGES).await, 1);
    assert_eq!(count(&outside, LOCKS).await, 0);

    let other = database.transactions(1).await;
    for store in [&store, &other] {
        assert_replays(&reserve(store, &key).await, "done");
        let mismatch = store
            .reserve(&key, &fingerprint(2), &terms())
            .await
            .unwrap();
        assert!(matches!(mismatch, Reservation::Mismatch(stored) if stored == fingerprint(1)));
    }
    let record = other.inspect(&key).await.unwrap().unwrap();
    assert!(matches!(record.state, RecordState::Completed(_)));
    assert_eq!((record.fence, record.attempt), (claim.fence(), 1));
    assert!(record.expires_in <= RETENTION);
}

#[tokio::test]
async fn giving_up_rolls_everything_back_and_a_retry_runs_at_once() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, outside) = (database.transactions(1).await, database.pool(1).await);
    let key = fresh_key();
    let mut fence = 0;
    for abandons in [false, true] {
        let claim = claim(&store, &key, &terms()).await;
        assert!(claim.fence() > fence, "also without a row");
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
        assert_kind(
            store.complete(&claim, &response("late"), RETENTION).await,
            StoreErrorKind::RolledBack,
        );
        assert!(store.inspect(&key).await.unwrap().is_none());
        assert_eq!(count(&outside, CHARGES).await, 0);
        assert_eq!(count(&outside, LOCKS).await, 0);
    }
    let claim = claim(&store, &key, &terms()).await;
    for _ in 0..2 {
        store
            .complete(&claim, &response("done"), RETENTION)
            .await
            .unwrap();
    }
    assert_kind(store.release(&claim).await, StoreErrorKind::LostClaim);
    assert_kind(
        store.abandon(&claim, RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test]
async fn one_connection_is_enough_and_duplicates_need_none() {
    let Some(database) = Database::new().await else {
        return;
    };
    let store = database.transactions(1).await;
    let (key, terms) = (fresh_key(), terms());
    let claim = claim(&store, &key, &terms).await;
    let mut tx = take(&claim);
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
    assert_replays(&reserve(&store, &key).await, "done");
    assert_eq!(count(&database.pool(1).await, CHARGES).await, 1);
}

/// They would otherwise wait as long as the handler runs, which ends here only after they have their answers.
#[tokio::test]
async fn a_duplicate_in_another_process_is_told_so_at_once() {
    let Some(database) = Database::new().await else {
        return;
    };
    for level in LEVELS {
        let setting = ("default_transaction_isolation", level);
        let pool = async |size| TransactionStore::new(database.pool_with(size, setting).await);
        let (store, other) = (pool(1).await, pool(1).await);
        let key = fresh_key();
        let claim = claim(&store, &key, &terms()).await;
        for number in [1, 2] {
            let answer = other.reserve(&key, &fingerprint(number), &terms()).await;
            assert!(matches!(answer.unwrap(), Reservation::InFlight { .. }));
        }
        store
            .complete(&claim, &response("done"), RETENTION)
            .await
            .unwrap();
        assert_replays(&reserve(&other, &key).await, "done");
    }
}

/// What a winner does about its claim.
#[derive(Clone, Copy, PartialEq)]
enum Winner {
    Commits,
    RollsBack,
    /// Until the others have their answers.
    Hangs,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_claimers_in_two_processes_one_runs_at_a_time_and_one_commits() {
    let Some(database) = Database::new().await else {
        return;
    };
    let outside = database.pool(1).await;
    let mut amount = 0;
    for level in LEVELS {
        let setting = ("default_transaction_isolation", level);
        let pools = [
            database.pool_with(10, setting).await,
            database.pool_with(10, setting).await,
        ];
        for winner in [Winner::Commits, Winner::RollsBack, Winner::Hangs] {
            for claimers in [2, 2, 3, 3, 20] {
                // Which don't know the pool's isolation yet.
                let stores = pools.clone().map(TransactionStore::new);
                amount += 1;
                let key = fresh_key();
                let answers = race(&stores, &key, claimers, winner, amount).await;
                let ran = answers.iter().filter(|answer| **answer == "ran").count();
                let context = (level, claimers, &answers);
                let expected = match winner {
                    Winner::Commits | Winner::Hangs => 1,
                    Winner::RollsBack => 0,
                };
                let sql = "SELECT count(*) FROM charges WHERE amount = $1";
                let charged: i64 = sqlx::query_scalar(sql)
                    .bind(amount)
                    .fetch_one(&outside)
                    .await
                    .unwrap();
                assert_eq!(charged, expected, "{context:?}");
                if winner == Winner::RollsBack {
                    // One after the other may have had its turn.
                    assert!(ran >= 1, "{context:?}");
                } else {
                    assert_eq!(ran, 1, "{context:?}");
                }
            }
        }
    }
}

async fn race(
    stores: &[TransactionStore; 2],
    key: &RecordKey,
    claimers: usize,
    winner: Winner,
    amount: i64,
) -> Vec<&'static str> {
    let barrier = Arc::new(Barrier::new(claimers));
    let answered = Arc::new(Barrier::new(claimers));
    let mut tasks = JoinSet::new();
    for number in 0..claimers {
        let (store, key) = (stores[number % 2].clone(), *key);
        let (barrier, answered) = (Arc::clone(&barrier), Arc::clone(&answered));
        tasks.spawn(async move {
            barrier.wait().await;
            let reservation = reserve(&store, &key).await;
            if winner == Winner::Hangs {
                answered.wait().await;
            }
            match reservation {
                Reservation::Acquired(claim) => {
                    charge(&mut take(&claim), amount).await;
                    let saved = response("done");
                    match winner {
                        Winner::RollsBack => store.release(&claim).await.unwrap(),
                        Winner::Commits | Winner::Hangs => {
                            store.complete(&claim, &saved, RETENTION).await.unwrap();
                        }
                    }
                    "ran"
                }
                Reservation::InFlight { .. } => "in flight",
                other => {
                    assert_replays(&other, "done");
                    "replayed"
                }
            }
        });
    }
    tasks.join_all().await
}

/// A replay holds the key's lock while it reads: those beside it must not take that for a run.
#[tokio::test]
async fn replays_side_by_side_in_two_processes_are_all_replays() {
    let Some(database) = Database::new().await else {
        return;
    };
    let stores = [
        database.transactions(8).await,
        database.transactions(8).await,
    ];
    let key = fresh_key();
    let claimed = claim(&stores[0], &key, &terms()).await;
    stores[0]
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    for _ in 0..10 {
        let barrier = Arc::new(Barrier::new(16));
        let mut tasks = JoinSet::new();
        for number in 0..16 {
            let (store, barrier) = (stores[number % 2].clone(), Arc::clone(&barrier));
            tasks.spawn(async move {
                barrier.wait().await;
                assert_replays(&reserve(&store, &key).await, "done");
            });
        }
        tasks.join_all().await;
    }
}

#[tokio::test]
async fn different_keys_run_side_by_side_and_conflict_under_no_isolation() {
    let Some(database) = Database::new().await else {
        return;
    };
    let outside = database.pool(1).await;
    for (level, first) in LEVELS.into_iter().zip([1_i64, 101, 201]) {
        let setting = ("default_transaction_isolation", level);
        let pool = database.pool_with(20, setting).await;
        let store = TransactionStore::new(pool);
        let barrier = Arc::new(Barrier::new(20));
        let mut tasks = JoinSet::new();
        for amount in first..first + 20 {
            let (store, barrier) = (store.clone(), Arc::clone(&barrier));
            tasks.spawn(async move {
                let claim = claim(&store, &fresh_key(), &terms()).await;
                // All of them are open at once, and none has read what another writes.
                barrier.wait().await;
                let mut tx = take(&claim);
                charge(&mut tx, amount).await;
                drop(tx);
                store.complete(&claim, &response("done"), RETENTION).await
            });
        }
        let results = tasks.join_all().await;
        assert!(results.iter().all(Result::is_ok), "{level}: {results:?}");
    }
    assert_eq!(count(&outside, CHARGES).await, 60);
}

#[tokio::test]
async fn the_pool_may_be_used_beside_the_transaction() {
    let Some(database) = Database::new().await else {
        return;
    };
    let pool = database.pool(2).await;
    let store = TransactionStore::new(pool.clone());
    let claim = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&claim);
    charge(&mut tx, 10).await;
    assert_eq!(
        count(&pool, CHARGES).await,
        0,
        "it isn't in the transaction"
    );
    sqlx::query("INSERT INTO charges (amount) VALUES (20)")
        .execute(&pool)
        .await
        .unwrap();
    drop(tx);
    store.release(&claim).await.unwrap();
    assert_eq!(count(&pool, CHARGES).await, 1, "nor rolled back with it");
}

#[tokio::test]
async fn an_expired_record_is_overwritten_and_a_live_one_is_not() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, outside) = (database.transactions(1).await, database.pool(1).await);
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
             (record_key, fence, expires, fingerprint_tag, fingerprint, nonce, response)
         SELECT $1, fence, expires, fingerprint_tag, fingerprint, nonce, response
         FROM tower_idempotency_transactions",
    )
    .bind(raced.as_bytes())
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

/// Another record that was committed meanwhile isn't seen under these isolations: the database refuses ours.
#[tokio::test]
async fn a_record_that_the_transaction_cannot_see_is_not_overwritten() {
    let Some(database) = Database::new().await else {
        return;
    };
    let outside = database.pool(1).await;
    for level in LEVELS {
        let setting = ("default_transaction_isolation", level);
        let store = TransactionStore::new(database.pool_with(1, setting).await);
        let key = fresh_key();
        let loser = claim(&store, &key, &terms()).await;
        charge(&mut take(&loser), 10).await;
        sqlx::query(
            "INSERT INTO tower_idempotency_transactions
                 (record_key, fence, expires, fingerprint_tag, fingerprint, nonce, response)
             VALUES ($1, 1, 9e15, 257, decode(repeat('01', 32), 'hex'), decode(repeat('02', 16), 'hex'), '\\x00')",
        )
        .bind(key.as_bytes())
        .execute(&outside)
        .await
        .unwrap();
        let kind = store
            .complete(&loser, &response("lost"), RETENTION)
            .await
            .unwrap_err()
            .kind();
        let expected = match level {
            "read committed" => StoreErrorKind::LostClaim,
            _ => StoreErrorKind::Conflict,
        };
        assert_eq!(kind, expected, "{level}");
        assert_eq!(count(&outside, CHARGES).await, 0);
        let answer = reserve(&store, &key).await;
        assert!(!matches!(answer, Reservation::Acquired(_)), "{answer:?}");
    }
}

#[tokio::test]
async fn operators_can_forget_and_purge() {
    let Some(database) = Database::new().await else {
        return;
    };
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

#[tokio::test]
async fn a_claim_without_its_transaction_can_settle_nothing_of_anothers() {
    let Some(database) = Database::new().await else {
        return;
    };
    let store = database.transactions(1).await;
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

/// What `complete` learns after a COMMIT whose answer was lost: by a claim that has no transaction any more.
#[tokio::test]
async fn a_claim_is_verified_by_reading_under_the_lock_of_its_key() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, other) = (
        database.transactions(1).await,
        database.transactions(1).await,
    );
    let bare = |of: &Claim| Claim::new(*of.key(), *of.fingerprint(), of.nonce(), 1, of.fence());
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    // Its transaction may still commit: nothing can be told, and the wait for it is bounded.
    assert_kind(
        other
            .complete(&bare(&claimed), &response("done"), RETENTION)
            .await,
        StoreErrorKind::OutcomeUnknown,
    );
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    for store in [&store, &other] {
        store
            .complete(&bare(&claimed), &response("done"), RETENTION)
            .await
            .unwrap();
        assert_kind(
            store.release(&bare(&claimed)).await,
            StoreErrorKind::LostClaim,
        );
    }
    let released = claim(&store, &fresh_key(), &terms()).await;
    store.release(&released).await.unwrap();
    assert_kind(
        other
            .complete(&bare(&released), &response("done"), RETENTION)
            .await,
        StoreErrorKind::RolledBack,
    );
    other.release(&bare(&released)).await.unwrap();
}

#[tokio::test]
async fn a_dropped_claim_rolls_back_and_frees_its_key() {
    let Some(database) = Database::new().await else {
        return;
    };
    let store = database.transactions(1).await;
    let key = fresh_key();
    let dropped = claim(&store, &key, &terms()).await;
    charge(&mut take(&dropped), 10).await;
    drop(dropped);
    until(|| async { !matches!(reserve(&store, &key).await, Reservation::InFlight { .. }) }).await;
    assert_eq!(count(&database.pool(1).await, CHARGES).await, 0);
}

#[tokio::test]
async fn an_interrupted_run_costs_its_connection() {
    let Some(database) = Database::new().await else {
        return;
    };
    let pool = database.pool(1).await;
    let store = TransactionStore::new(pool.clone());
    let backend = async || count(&pool, "SELECT pg_backend_pid()::bigint").await;
    for interrupted in [false, true] {
        let before = backend().await;
        let mut claimed = claim(&store, &fresh_key(), &terms()).await;
        charge(&mut take(&claimed), 10).await;
        if interrupted {
            claimed.set_interrupted();
        }
        store.release(&claimed).await.unwrap();
        assert_eq!(backend().await != before, interrupted);
        assert_eq!(count(&pool, CHARGES).await, 0);
    }
}

/// Nobody helps here: the client keeps its connection open, and does nothing with it.
#[tokio::test]
async fn a_frozen_client_does_not_hold_its_key_for_ever() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, outside) = (database.transactions(1).await, database.pool(1).await);
    let limited = terms().with_run_limit(Duration::from_millis(200));
    let key = fresh_key();
    let frozen = claim(&store, &key, &limited).await;
    charge(&mut take(&frozen), 10).await;
    until(|| async { count(&outside, LOCKS).await == 0 }).await;
    let other = database.transactions(1).await;
    let claimed = claim(&other, &key, &terms()).await;
    other
        .complete(&claimed, &response("other"), RETENTION)
        .await
        .unwrap();
    let late = store.complete(&frozen, &response("late"), RETENTION).await;
    assert_kind(late, StoreErrorKind::RolledBack);
    assert_eq!(count(&outside, CHARGES).await, 0);
    assert_replays(&reserve(&store, &key).await, "other");
}

async fn setting(pool: &PgPool, name: &str) -> String {
    let sql = "SELECT current_setting($1)";
    sqlx::query_scalar(sql)
        .bind(name)
        .fetch_one(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_users_own_settings_hold_for_the_handler_and_afterwards() {
    const IDLE: &str = "idle_in_transaction_session_timeout";
    let Some(database) = Database::new().await else {
        return;
    };
    let own = [
        ("lock_timeout", "7s"),
        ("statement_timeout", "9s"),
        ("default_transaction_isolation", "repeatable read"),
        ("bytea_output", "escape"),
        ("standard_conforming_strings", "off"),
        ("intervalstyle", "iso_8601"),
    ];
    // What is the session's, what the terms say, and what the handler has.
    for (session, run_limit, handler) in [
        ("0", 5_000, "5s"),
        ("2s", 5_000, "2s"),
        ("1min", 5_000, "5s"),
        ("1d", 5_000, "5s"),
        ("1500ms", 1_600, "1500ms"),
        ("0", u64::MAX, "2147483647ms"),
    ] {
        let options = database.options().options(own).options([(IDLE, session)]);
        let pool = pool(options, 1).await;
        let store = TransactionStore::new(pool.clone());
        let limited = terms().with_run_limit(Duration::from_millis(run_limit));
        for completes in [true, false] {
            let claim = claim(&store, &fresh_key(), &limited).await;
            let mut tx = take(&claim);
            for (name, expected) in own.into_iter().chain([(IDLE, handler)]) {
                let value: String = sqlx::query_scalar("SELECT current_setting($1)")
                    .bind(name)
                    .fetch_one(&mut *tx)
                    .await
                    .unwrap();
                assert_eq!(value, expected, "{name}");
            }
            let isolation: String = sqlx::query_scalar("SHOW transaction_isolation")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            assert_eq!(isolation, "repeatable read");
            drop(tx);
            if completes {
                store
                    .complete(&claim, &response("done"), RETENTION)
                    .await
                    .unwrap();
                assert_replays(&reserve(&store, claim.key()).await, "done");
            } else {
                store.release(&claim).await.unwrap();
            }
            for (name, expected) in own.into_iter().chain([(IDLE, session)]) {
                assert_eq!(setting(&pool, name).await, expected, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn a_database_that_only_reads_is_unavailable_before_the_handler_runs() {
    let Some(database) = Database::new().await else {
        return;
    };
    let writable = database.transactions(1).await;
    let (done, new) = (fresh_key(), fresh_key());
    let claim = claim(&writable, &done, &terms()).await;
    writable
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    let setting = ("default_transaction_read_only", "on");
    let store = TransactionStore::new(database.pool_with(1, setting).await);
    assert_kind(
        store.reserve(&new, &fingerprint(1), &terms()).await,
        StoreErrorKind::Unavailable,
    );
    assert_replays(&reserve(&store, &done).await, "done");
}

#[tokio::test]
async fn a_missing_table_says_what_to_do_and_leaves_nothing_behind() {
    let Some(database) = Database::new().await else {
        return;
    };
    let pool = database.pool(1).await;
    sqlx::query("DROP TABLE tower_idempotency_transactions")
        .execute(&pool)
        .await
        .unwrap();
    let store = TransactionStore::new(pool.clone());
    let key = fresh_key();
    for _ in 0..2 {
        let error = store
            .reserve(&key, &fingerprint(1), &terms())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other);
        assert!(error.source().unwrap().to_string().contains("migrate()"));
    }
    until(|| async { count(&pool, LOCKS).await == 0 }).await;
    store.migrate().await.unwrap();
    claim(&store, &key, &terms()).await;
}
