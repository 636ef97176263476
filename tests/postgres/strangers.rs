//! A connection of the pool on which somebody has left a transaction open, as a dropped `begin` does: what a store is told to write
//! there is committed all the same, and what it reads is what others have committed.

use sqlx::{Executor, PgPool};
use tower_idempotency::{
    RecordKey,
    postgres::LeaseStore,
    store::{Claim, RecordState, Reservation, Store},
};

use super::{database, dropped::is_in_transaction};
use crate::postgres_support::*;

/// What was left behind: nothing but the transaction, one that sees no more of others, and one that has failed.
const LEFT: [&str; 4] = [
    "BEGIN",
    "BEGIN READ ONLY",
    "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM charges",
    "BEGIN; SELECT FROM nowhere",
];

/// A store whose one connection strangers use as well, and one on connections of its own.
struct Shared {
    left: &'static str,
    pool: PgPool,
    store: LeaseStore,
    other: LeaseStore,
}

impl Shared {
    /// What comes of a call, on the connection as it was left.
    async fn call<T>(&self, call: impl AsyncFnOnce(&LeaseStore) -> T) -> T {
        // As far as it goes.
        drop(self.pool.execute(sqlx::raw_sql(self.left)).await);
        let output = call(&self.store).await;
        assert!(!is_in_transaction(&self.pool).await, "{}", self.left);
        output
    }

    /// Claimed elsewhere.
    async fn claimed(&self) -> Claim {
        claim(&self.other, &fresh_key(), &terms()).await
    }

    async fn assert_in_flight(&self, key: &RecordKey) {
        let answer = reserve(&self.other, key).await;
        assert!(
            matches!(answer, Reservation::InFlight { .. }),
            "{}: {answer:?}",
            self.left
        );
    }
}

async fn each_shared(database: &Database) -> Vec<Shared> {
    let mut all = Vec::new();
    for left in LEFT {
        for cached in [100, 0] {
            let options = database.options().statement_cache_capacity(cached);
            let pool = pool(options, 1).await;
            all.push(Shared {
                left,
                store: LeaseStore::new(pool.clone()),
                pool,
                other: database.leases(1).await,
            });
        }
    }
    all
}

#[tokio::test]
async fn a_claim_on_a_connection_that_was_left_in_a_transaction_is_committed() {
    let database = database!();
    for shared in each_shared(&database).await {
        let key = fresh_key();
        shared
            .call(async |store| claim(store, &key, &terms()).await)
            .await;
        shared.assert_in_flight(&key).await;

        let before = shared.claimed().await;
        shared.other.release(&before).await.unwrap();
        let after = shared
            .call(async |store| claim(store, before.key(), &terms()).await)
            .await;
        assert!(after.fence() > before.fence());
        shared.assert_in_flight(before.key()).await;
    }
}

#[tokio::test]
async fn what_is_settled_on_a_connection_that_was_left_in_a_transaction_is_committed() {
    let database = database!();
    for shared in each_shared(&database).await {
        let (done, saved) = (shared.claimed().await, response("done"));
        let completed = shared
            .call(async |store| store.complete(&done, &saved, RETENTION).await)
            .await;
        completed.unwrap();
        assert_replays(&reserve(&shared.other, done.key()).await, "done");

        let left = shared.claimed().await;
        let abandoned = shared
            .call(async |store| store.abandon(&left, RETENTION).await)
            .await;
        abandoned.unwrap();
        let answer = reserve(&shared.other, left.key()).await;
        assert!(matches!(answer, Reservation::Unknown), "{answer:?}");

        let free = shared.claimed().await;
        let released = shared.call(async |store| store.release(&free).await).await;
        released.unwrap();
        let answer = reserve(&shared.other, free.key()).await;
        assert!(matches!(answer, Reservation::Acquired(_)), "{answer:?}");
    }
}

#[tokio::test]
async fn a_lease_is_renewed_for_all_on_a_connection_that_was_left_in_a_transaction() {
    let database = database!();
    let outside = database.pool(1).await;
    for shared in each_shared(&database).await {
        let claimed = shared.claimed().await;
        let ends = async || -> i64 {
            sqlx::query_scalar(
                "SELECT lease_end FROM tower_idempotency_leases WHERE record_key = $1",
            )
            .bind(claimed.key().as_bytes())
            .fetch_one(&outside)
            .await
            .unwrap()
        };
        let before = ends().await;
        let renewed = shared
            .call(async |store| store.renew(&claimed, LEASE).await)
            .await;
        renewed.unwrap();
        assert!(ends().await > before, "{}", shared.left);
    }
}

#[tokio::test]
async fn operators_work_on_a_connection_that_was_left_in_a_transaction() {
    let database = database!();
    let outside = database.pool(1).await;
    let rows = "SELECT count(*) FROM tower_idempotency_leases";
    for shared in each_shared(&database).await {
        let claimed = shared.claimed().await;
        let key = claimed.key();
        let found = shared
            .call(async |store| store.inspect(key).await.unwrap())
            .await;
        assert!(matches!(found.unwrap().state, RecordState::InFlight { .. }));
        let saved = response("done");
        let completed = shared.other.complete(&claimed, &saved, RETENTION).await;
        completed.unwrap();
        let answer = shared.call(async |store| reserve(store, key).await).await;
        assert_replays(&answer, "done");
        let forgotten = shared.call(async |store| store.forget(key).await).await;
        assert!(forgotten.unwrap(), "{}", shared.left);
        assert!(shared.other.inspect(key).await.unwrap().is_none());
        let purged = shared
            .call(async |store| store.purge_expired(10).await)
            .await;
        assert_eq!((purged.unwrap(), count(&outside, rows).await), (1, 0));
    }
}
