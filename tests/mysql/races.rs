//! Claimers of one key in two processes, which end in every way. None of them sees an error.

use std::sync::Arc;

use sqlx::MySqlPool;
use tokio::{sync::Barrier, task::JoinSet};
use tower_idempotency::{
    mysql::{LeaseStore, TransactionStore},
    store::{Reservation, Store},
};

use super::database;
use crate::mysql_support::*;

const ISOLATIONS: [&str; 3] = [
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
];
const CLAIMERS: [usize; 3] = [2, 5, 20];

#[tokio::test]
async fn one_of_many_gets_the_lease() {
    let database = database!();
    database.lease(1).await;
    for isolation in ISOLATIONS {
        let database = database.clone().with(isolation);
        let pools = [database.pool(10).await, database.pool(10).await];
        for claimers in CLAIMERS {
            let key = fresh_key();
            let barrier = Arc::new(Barrier::new(claimers));
            let mut tasks = JoinSet::new();
            for number in 0..claimers {
                let store = LeaseStore::new(pools[number % 2].clone());
                let barrier = Arc::clone(&barrier);
                tasks.spawn(async move {
                    barrier.wait().await;
                    reserve(&store, &key).await
                });
            }
            let answers = tasks.join_all().await;
            let won = answers
                .iter()
                .filter(|answer| matches!(answer, Reservation::Acquired(_)));
            assert_eq!(won.count(), 1, "{isolation}");
            let busy = answers
                .iter()
                .filter(|answer| matches!(answer, Reservation::InFlight { .. }));
            assert_eq!(busy.count(), claimers - 1);
        }
    }
}

/// Over an expired row, which is written and not inserted.
#[tokio::test]
async fn one_of_many_gets_an_expired_key() {
    let database = database!();
    let lease = database.lease(1).await;
    let transaction = database.transaction(1).await;
    let pools = [database.pool(10).await, database.pool(10).await];
    for claimers in CLAIMERS {
        for leases in [true, false] {
            let key = fresh_key();
            let first: &dyn Store = if leases { &lease } else { &transaction };
            let old = claim(first, &key, &terms()).await;
            first
                .complete(&old, &response("old"), INSTANT)
                .await
                .unwrap();
            until(|| async { first.inspect(&key).await.unwrap().is_none() }).await;
            let barrier = Arc::new(Barrier::new(claimers));
            let mut tasks = JoinSet::new();
            for number in 0..claimers {
                let pool = pools[number % 2].clone();
                let store: Arc<dyn Store> = if leases {
                    Arc::new(LeaseStore::new(pool))
                } else {
                    Arc::new(TransactionStore::new(pool))
                };
                let barrier = Arc::clone(&barrier);
                tasks.spawn(async move {
                    barrier.wait().await;
                    let answer = reserve(&*store, &key).await;
                    // A transaction is held until all have their answers.
                    barrier.wait().await;
                    answer
                });
            }
            let answers = tasks.join_all().await;
            let fences: Vec<u64> = answers
                .iter()
                .filter_map(|answer| match answer {
                    Reservation::Acquired(claim) => Some(claim.fence()),
                    Reservation::InFlight { .. } => None,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert!(
                matches!(*fences, [fence] if fence > old.fence()),
                "{fences:?}"
            );
        }
    }
}

/// How the winner of a race ends. Who doesn't win asks again.
#[derive(Clone, Copy, Debug)]
enum End {
    Commits,
    RollsBack,
    Hangs,
}

#[tokio::test]
async fn the_handlers_of_one_key_run_one_after_the_other_until_one_commits() {
    let database = database!();
    let outside = database.shop().await;
    database.transaction(1).await;
    for isolation in ISOLATIONS {
        let database = database.clone().with(isolation);
        let pools = [database.pool(10).await, database.pool(10).await];
        for claimers in CLAIMERS {
            for end in [End::Commits, End::RollsBack, End::Hangs] {
                race(&pools, claimers, end).await;
                assert_eq!(
                    count(&outside, CHARGES).await,
                    1,
                    "{isolation}, {claimers}, {end:?}"
                );
                sqlx::query("DELETE FROM charges")
                    .execute(&outside)
                    .await
                    .unwrap();
            }
        }
    }
}

async fn race(pools: &[MySqlPool; 2], claimers: usize, end: End) {
    let key = fresh_key();
    let barrier = Arc::new(Barrier::new(claimers));
    // The first of all winners ends like this, the next one commits.
    let first = Arc::new(std::sync::Mutex::new(Some(end)));
    let mut tasks = JoinSet::new();
    for number in 0..claimers {
        let store = TransactionStore::new(pools[number % 2].clone());
        let (barrier, first) = (Arc::clone(&barrier), Arc::clone(&first));
        tasks.spawn(async move {
            barrier.wait().await;
            loop {
                let claim = match after_flight(&store, &key).await {
                    Reservation::Acquired(claim) => claim,
                    replay => return assert_replays(&replay, "done"),
                };
                run(&mut take(&claim), CHARGE).await.unwrap();
                let end = first.lock().unwrap().take();
                match end {
                    None | Some(End::Commits) => complete(&store, &claim, "done").await.unwrap(),
                    Some(End::RollsBack) => store.release(&claim).await.unwrap(),
                    // As if its process were killed.
                    Some(End::Hangs) => drop(claim),
                }
            }
        });
    }
    tasks.join_all().await;
}

/// Their rows lie next to each other, and a table with few rows has wide gaps to lock.
#[tokio::test]
async fn handlers_of_different_keys_do_not_get_in_each_others_way() {
    let database = database!();
    let outside = database.shop().await;
    database.transaction(1).await;
    for isolation in ISOLATIONS {
        let database = database.clone().with(isolation);
        let pools = [database.pool(10).await, database.pool(10).await];
        let barrier = Arc::new(Barrier::new(20));
        let mut tasks = JoinSet::new();
        for number in 0..20_usize {
            let store = TransactionStore::new(pools[number % 2].clone());
            let barrier = Arc::clone(&barrier);
            tasks.spawn(async move {
                for round in 0..5_usize {
                    barrier.wait().await;
                    let claimed = claim(&store, &fresh_key(), &terms()).await;
                    sqlx::query("INSERT INTO charges VALUES (?)")
                        .bind(i64::try_from(round * 100 + number).unwrap())
                        .execute(&mut *take(&claimed))
                        .await
                        .unwrap();
                    // All hold their keys at once.
                    barrier.wait().await;
                    complete(&store, &claimed, "done").await.unwrap();
                    assert_replays(&reserve(&store, claimed.key()).await, "done");
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(count(&outside, CHARGES).await, 100, "{isolation}");
        sqlx::query("DELETE FROM charges")
            .execute(&outside)
            .await
            .unwrap();
    }
}

/// Each statement locks its own row only, whatever the table looks like.
#[tokio::test]
async fn leases_of_different_keys_do_not_get_in_each_others_way() {
    let database = database!();
    database.lease(1).await;
    for isolation in ISOLATIONS {
        let database = database.clone().with(isolation);
        let pools = [database.pool(10).await, database.pool(10).await];
        let barrier = Arc::new(Barrier::new(20));
        let mut tasks = JoinSet::new();
        for number in 0..20_usize {
            let store = LeaseStore::new(pools[number % 2].clone());
            let barrier = Arc::clone(&barrier);
            tasks.spawn(async move {
                for round in 0..10 {
                    barrier.wait().await;
                    let claimed = claim(&store, &fresh_key(), &terms()).await;
                    store.renew(&claimed, LEASE).await.unwrap();
                    match (round + number) % 4 {
                        0 => store.release(&claimed).await.unwrap(),
                        1 => store.abandon(&claimed, INSTANT).await.unwrap(),
                        2 => assert!(store.forget(claimed.key()).await.unwrap()),
                        _ => complete(&store, &claimed, "done").await.unwrap(),
                    }
                    store.purge_expired(3).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
    }
}
