//! Many who want one key, in two processes: each store has a pool of its own.

use std::sync::Arc;

use tokio::{sync::Barrier, task::JoinSet};
use tower_idempotency::{
    RecordKey,
    postgres::{LeaseStore, TransactionStore},
    store::{Reservation, Store, Takeover},
};

use super::{
    database,
    lease::{lapsing, until_lapsed},
    trips::behind_proxy,
};
use crate::{postgres_support::*, servers::Fault};

/// Whatever the isolation: the winner then completes, gives up, or does nothing for now.
#[tokio::test]
async fn one_of_many_claimers_wins_and_the_others_are_told_how_it_stands() {
    let database = database!();
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let setting = ("default_transaction_isolation", isolation);
        let stores = [
            LeaseStore::new(database.pool_with(5, setting).await),
            LeaseStore::new(database.pool_with(5, setting).await),
        ];
        for (claimers, key) in [2, 3, 5, 10, 20].map(|claimers| (claimers, fresh_key())) {
            let answers = race_leases(&stores, &key, claimers).await;
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
                    for answer in race_leases(&stores, &key, claimers).await {
                        assert_replays(&answer, "done");
                    }
                }
                3 | 20 => {
                    stores[1].release(claim).await.unwrap();
                    let free = race_leases(&stores, &key, claimers).await;
                    let won = |answer: &&Reservation| matches!(answer, Reservation::Acquired(_));
                    assert_eq!(free.iter().filter(won).count(), 1, "{isolation}: {free:?}");
                }
                _ => assert!(race_leases(&stores, &key, claimers).await.iter().all(busy)),
            }
        }
    }
}

/// Reserves a key from several tasks at once, over both stores.
async fn race_leases(
    stores: &[LeaseStore; 2],
    key: &RecordKey,
    claimers: usize,
) -> Vec<Reservation> {
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
    let database = database!();
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

/// What a takeover has read may be over when it comes to write.
#[tokio::test]
async fn an_owner_who_renews_in_between_is_not_taken_over() {
    for cached in [100, 0] {
        let Some((database, proxy, pool)) = behind_proxy(cached).await else {
            return;
        };
        let (taker, owner) = (LeaseStore::new(pool), database.leases(1).await);
        let key = fresh_key();
        let claimed = claim(&owner, &key, &lapsing()).await;
        until_lapsed(&owner, &key).await;
        let strikes = proxy.inject(Fault::Hang.on("greatest(record.fence + 1"));
        let taking = tokio::spawn(async move {
            let terms = terms().with_takeover(Takeover::RunAgain);
            taker.reserve(&key, &fingerprint(1), &terms).await.unwrap()
        });
        strikes.struck(1).await;
        owner.renew(&claimed, LEASE).await.unwrap();
        proxy.resume();
        let taken = taking.await.unwrap();
        assert!(matches!(taken, Reservation::InFlight { .. }), "{taken:?}");
        let response = response("done");
        let completed = owner.complete(&claimed, &response, RETENTION);
        completed.await.unwrap();
    }
}

/// Or it was taken over, and has lapsed again: then it is one more.
#[tokio::test]
async fn a_takeover_in_between_is_counted() {
    for cached in [100, 0] {
        let Some((database, proxy, pool)) = behind_proxy(cached).await else {
            return;
        };
        let (taker, others) = (LeaseStore::new(pool), database.leases(1).await);
        let key = fresh_key();
        claim(&others, &key, &lapsing()).await;
        until_lapsed(&others, &key).await;
        let strikes = proxy.inject(Fault::Hang.on("greatest(record.fence + 1"));
        let taking = tokio::spawn(async move {
            let terms = terms().with_takeover(Takeover::RunAgain);
            claim(&taker, &key, &terms).await
        });
        strikes.struck(1).await;
        let between = lapsing().with_takeover(Takeover::RunAgain);
        let between = claim(&others, &key, &between).await;
        assert_eq!(between.attempt(), 2);
        until_lapsed(&others, &key).await;
        proxy.resume();
        let taken = taking.await.unwrap();
        assert_eq!(taken.attempt(), 3);
        assert!(taken.fence() > between.fence());
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
    let database = database!();
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
                let answers = race_transactions(&stores, &key, claimers, winner, amount).await;
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

async fn race_transactions(
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
    let database = database!();
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
    let database = database!();
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
