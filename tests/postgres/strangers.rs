//! A connection of the pool on which somebody has left a transaction open, as a dropped `begin` does: what a store is told to write
//! there is committed all the same, what it reads is what others have committed, and what was left there is rolled back.

use sqlx::{Executor, PgPool};
use tower_idempotency::{
    RecordKey, StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::{Claim, ListRecords, Note, RecordState, Reservation, Store},
};

use super::{database, dropped::is_in_transaction, servers::Fault, trips::behind_proxy};
use crate::postgres_support::*;

/// What was left behind: nothing but the transaction, one that has written, one that sees no more of others, and one that has failed.
const LEFT: [&str; 5] = [
    "BEGIN",
    "BEGIN; INSERT INTO charges (amount) VALUES (1)",
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
    async fn leave(&self) {
        // As far as it goes.
        drop(self.pool.execute(sqlx::raw_sql(self.left)).await);
    }

    /// What comes of a call, on the connection as it was left.
    async fn call<T>(&self, call: impl AsyncFnOnce(&LeaseStore) -> T) -> T {
        self.leave().await;
        self.go_on(call).await
    }

    /// The same, where others have done something since.
    async fn go_on<T>(&self, call: impl AsyncFnOnce(&LeaseStore) -> T) -> T {
        let output = call(&self.store).await;
        assert!(!is_in_transaction(&self.pool).await, "{}", self.left);
        let committed = count(&self.pool, CHARGES).await;
        assert_eq!(committed, 0, "rolled back: {}", self.left);
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
async fn a_lost_claim_is_known_on_a_connection_that_was_left_in_a_transaction() {
    let database = database!();
    for shared in each_shared(&database).await {
        let (lost, saved) = (shared.claimed().await, response("late"));
        shared.leave().await;
        shared.other.release(&lost).await.unwrap();
        claim(&shared.other, lost.key(), &terms()).await;
        let refused = shared
            .go_on(async |store| store.complete(&lost, &saved, RETENTION).await)
            .await;
        assert_kind(refused, StoreErrorKind::LostClaim);
    }
}

/// Which that transaction would keep.
#[tokio::test]
async fn what_is_refused_leaves_no_lock_on_a_connection_that_was_left_in_a_transaction() {
    let Some((database, proxy, pool)) = behind_proxy(100).await else {
        return;
    };
    let store = LeaseStore::new(pool.clone());
    let bounded = database.pool_with(1, ("lock_timeout", "5s")).await;
    let other = LeaseStore::new(bounded);
    other.migrate().await.unwrap();
    let lost = claim(&other, &fresh_key(), &terms()).await;
    other.release(&lost).await.unwrap();
    let now = claim(&other, lost.key(), &terms()).await;
    pool.execute("BEGIN").await.unwrap();
    // Where it reads why.
    let strikes = proxy.inject(Fault::Hang.on("AS clock LEFT JOIN"));
    let completing = tokio::spawn(async move {
        let saved = response("late");
        store.complete(&lost, &saved, RETENTION).await
    });
    strikes.struck(1).await;
    other.renew(&now, LEASE).await.unwrap();
    proxy.resume();
    assert_kind(completing.await.unwrap(), StoreErrorKind::LostClaim);
}

#[tokio::test]
async fn steps_are_noted_and_read_on_a_connection_that_was_left_in_a_transaction() {
    let database = database!();
    for shared in each_shared(&database).await {
        shared.leave().await;
        let claimed = shared.claimed().await;
        let (first, second) = (Note::new("first", "1"), Note::new("second", "2"));
        let noted = shared
            .go_on(async |store| store.steps().unwrap().note(&claimed, &first).await)
            .await;
        noted.unwrap();
        shared.leave().await;
        let other = shared.other.steps().unwrap();
        other.note(&claimed, &second).await.unwrap();
        let notes = shared
            .go_on(async |store| store.steps().unwrap().notes(&claimed).await)
            .await;
        assert_eq!(notes.unwrap(), [first, second], "{}", shared.left);
        // Of a claim that the snapshot doesn't show.
        shared.leave().await;
        let claimed = shared.claimed().await;
        let notes = shared
            .go_on(async |store| store.steps().unwrap().notes(&claimed).await)
            .await;
        assert_eq!(notes.unwrap(), [], "{}", shared.left);
    }
}

#[tokio::test]
async fn operators_of_a_transaction_store_work_on_a_connection_that_was_left_in_a_transaction() {
    let database = database!();
    let outside = database.pool(1).await;
    let other = database.transactions(1).await;
    let rows = "SELECT count(*) FROM tower_idempotency_transactions";
    for shared in each_shared(&database).await {
        let store = TransactionStore::new(shared.pool.clone());
        shared.leave().await;
        let claimed = claim(&other, &fresh_key(), &terms()).await;
        let saved = response("done");
        other.complete(&claimed, &saved, RETENTION).await.unwrap();
        let key = claimed.key();
        assert!(store.inspect(key).await.unwrap().is_some());
        other.forget(key).await.unwrap();

        shared.leave().await;
        let claimed = claim(&other, key, &terms()).await;
        other.complete(&claimed, &saved, RETENTION).await.unwrap();
        assert!(store.forget(key).await.unwrap(), "{}", shared.left);
        assert_eq!(count(&outside, rows).await, 0, "{}", shared.left);

        let claimed = claim(&other, key, &terms()).await;
        other.complete(&claimed, &saved, RETENTION).await.unwrap();
        outside
            .execute("UPDATE tower_idempotency_transactions SET expires = 1")
            .await
            .unwrap();
        shared.leave().await;
        let purged = store.purge_expired(10).await.unwrap();
        assert_eq!((purged, count(&outside, rows).await), (1, 0));

        shared.leave().await;
        assert_eq!(store.count_records().await.unwrap().completed, 0);
        assert_eq!(count(&outside, CHARGES).await, 0, "{}", shared.left);
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
        shared.leave().await;
        shared.claimed().await;
        let counts = shared
            .go_on(async |store| store.count_records().await)
            .await;
        let counts = counts.unwrap();
        assert_eq!((counts.completed, counts.in_flight), (1, 1));
        outside
            .execute("DELETE FROM tower_idempotency_leases WHERE state = 0")
            .await
            .unwrap();
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

/// As by `pool.begin()`, whose `BEGIN` doesn't end a transaction either.
#[tokio::test]
async fn what_was_left_in_a_transaction_ends_as_the_handlers_own_that_goes_on_in_it() {
    let database = database!();
    let (pool, outside) = (database.pool(1).await, database.pool(1).await);
    let store = TransactionStore::new(pool.clone());
    let leave = "BEGIN; INSERT INTO charges (amount) VALUES (1)";

    pool.execute(sqlx::raw_sql(leave)).await.unwrap();
    let refused = claim(&store, &fresh_key(), &terms()).await;
    store.release(&refused).await.unwrap();
    assert!(!is_in_transaction(&pool).await);
    assert_eq!(count(&outside, CHARGES).await, 0);

    pool.execute(sqlx::raw_sql(leave)).await.unwrap();
    let (done, saved) = (
        claim(&store, &fresh_key(), &terms()).await,
        response("done"),
    );
    store.complete(&done, &saved, RETENTION).await.unwrap();
    assert!(!is_in_transaction(&pool).await);
    assert_eq!(count(&outside, CHARGES).await, 1);
}
