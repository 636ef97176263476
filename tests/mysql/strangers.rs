//! A connection of the pool on which somebody has left a transaction open, as a dropped `begin` does: what a store is told to write
//! there is committed all the same, and what it reads is what others have committed.

use sqlx::{Executor, MySqlPool};
use tower_idempotency::{
    RecordKey, StoreErrorKind,
    mysql::{LeaseStore, TransactionStore},
    store::{Claim, ListRecords, Note, RecordState, Reservation, Store},
};

use super::database;
use crate::mysql_support::*;

/// What was left behind: nothing but the transaction, one that may not write, one that sees no more of others, and a session that is
/// always in one.
const LEFT: [&str; 4] = [
    "START TRANSACTION",
    "START TRANSACTION READ ONLY",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    "SET SESSION autocommit = 0",
];

/// A store whose one connection strangers use as well, and one on connections of its own.
struct Shared {
    left: &'static str,
    pool: MySqlPool,
    store: LeaseStore,
    other: LeaseStore,
}

impl Shared {
    async fn each(database: &Database) -> Vec<Self> {
        let mut all = Vec::new();
        let isolated = database.clone().with_isolated_snapshots().await;
        for database in [Some(database.clone()), isolated].into_iter().flatten() {
            for left in LEFT {
                let pool = database.pool(1).await;
                all.push(Self {
                    left,
                    store: LeaseStore::new(pool.clone()),
                    pool,
                    other: database.lease(1).await,
                });
            }
        }
        all
    }

    async fn leave(&self) {
        self.pool.execute(sqlx::raw_sql(self.left)).await.unwrap();
    }

    /// What comes of a call, on the connection as it was left.
    async fn call<T>(&self, call: impl AsyncFnOnce(&LeaseStore) -> T) -> T {
        self.leave().await;
        self.go_on(call).await
    }

    /// The same, where others have done something since.
    async fn go_on<T>(&self, call: impl AsyncFnOnce(&LeaseStore) -> T) -> T {
        let output = call(&self.store).await;
        let is_open = count(&self.pool, "SELECT 0 /*M! + @@in_transaction */").await;
        assert_eq!(is_open, 0, "{}", self.left);
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

#[tokio::test]
async fn a_claim_on_a_connection_that_was_left_in_a_transaction_is_committed() {
    let database = database!();
    for shared in Shared::each(&database).await {
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
    let outside = database.shop().await;
    for shared in Shared::each(&database).await {
        let done = shared.claimed().await;
        let completed = shared
            .call(async |store| complete(store, &done, "done").await)
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

        let lost = shared.claimed().await;
        outside
            .execute("DELETE FROM tower_idempotency_leases")
            .await
            .unwrap();
        let completed = shared
            .call(async |store| complete(store, &lost, "lost").await)
            .await;
        completed.unwrap();
        assert_replays(&reserve(&shared.other, lost.key()).await, "lost");
    }
}

/// Nor does what was refused keep its locks there.
#[tokio::test]
async fn a_lost_claim_is_known_on_a_connection_that_was_left_in_a_transaction() {
    let database = database!();
    for shared in Shared::each(&database).await {
        let lost = shared.claimed().await;
        shared.leave().await;
        shared.other.release(&lost).await.unwrap();
        let now = claim(&shared.other, lost.key(), &terms()).await;
        let refused = shared
            .go_on(async |store| complete(store, &lost, "late").await)
            .await;
        assert_kind(refused, StoreErrorKind::LostClaim);
        complete(&shared.other, &now, "done").await.unwrap();
        assert_replays(&reserve(&shared.store, now.key()).await, "done");
    }
}

#[tokio::test]
async fn a_lease_is_renewed_for_all_on_a_connection_that_was_left_in_a_transaction() {
    let database = database!();
    let outside = database.shop().await;
    let ends = "SELECT MAX(lease_end) FROM tower_idempotency_leases";
    for shared in Shared::each(&database).await {
        let claimed = shared.claimed().await;
        let before = count(&outside, ends).await;
        let renewed = shared
            .call(async |store| store.renew(&claimed, LEASE * 2).await)
            .await;
        renewed.unwrap();
        assert!(count(&outside, ends).await > before, "{}", shared.left);
        shared.other.forget(claimed.key()).await.unwrap();
    }
}

#[tokio::test]
async fn steps_are_noted_and_read_on_a_connection_that_was_left_in_a_transaction() {
    let database = database!();
    for shared in Shared::each(&database).await {
        let claimed = shared.claimed().await;
        let (first, second) = (Note::new("first", "1"), Note::new("second", "2"));
        let noted = shared
            .call(async |store| store.steps().unwrap().note(&claimed, &first).await)
            .await;
        noted.unwrap();
        let other = shared.other.steps().unwrap();
        assert_eq!(
            other.notes(&claimed).await.unwrap(),
            std::slice::from_ref(&first)
        );
        shared.leave().await;
        other.note(&claimed, &second).await.unwrap();
        let notes = shared
            .go_on(async |store| store.steps().unwrap().notes(&claimed).await)
            .await;
        assert_eq!(notes.unwrap(), [first, second], "{}", shared.left);
    }
}

#[tokio::test]
async fn operators_work_on_a_connection_that_was_left_in_a_transaction() {
    let database = database!();
    let outside = database.shop().await;
    let rows = "SELECT count(*) FROM tower_idempotency_leases";
    for shared in Shared::each(&database).await {
        shared.leave().await;
        let claimed = shared.claimed().await;
        let key = claimed.key();
        let found = shared
            .go_on(async |store| store.inspect(key).await.unwrap())
            .await;
        assert!(matches!(found.unwrap().state, RecordState::InFlight { .. }));
        shared.leave().await;
        complete(&shared.other, &claimed, "done").await.unwrap();
        let counts = shared
            .go_on(async |store| store.count_records().await)
            .await;
        assert_eq!(counts.unwrap().completed, 1, "{}", shared.left);
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

/// The handler's transaction is begun anew: see `sessions`.
#[tokio::test]
async fn operators_of_a_transaction_store_work_on_a_connection_that_was_left_in_a_transaction() {
    let database = database!();
    let outside = database.shop().await;
    let rows = "SELECT count(*) FROM tower_idempotency_transactions";
    for Shared {
        left, pool, other, ..
    } in Shared::each(&database).await
    {
        drop(other);
        let (store, other) = (
            TransactionStore::new(pool.clone()),
            database.transaction(1).await,
        );
        let leave = async || {
            pool.execute(sqlx::raw_sql(left)).await.unwrap();
        };
        leave().await;
        let claimed = claim(&other, &fresh_key(), &terms()).await;
        complete(&other, &claimed, "done").await.unwrap();
        let key = claimed.key();
        assert!(store.inspect(key).await.unwrap().is_some(), "{left}");
        leave().await;
        assert!(store.forget(key).await.unwrap(), "{left}");
        assert_eq!(count(&outside, rows).await, 0, "{left}");

        let claimed = claim(&other, key, &terms()).await;
        complete(&other, &claimed, "done").await.unwrap();
        outside
            .execute("UPDATE tower_idempotency_transactions SET expires = 1")
            .await
            .unwrap();
        leave().await;
        let purged = store.purge_expired(10).await.unwrap();
        assert_eq!((purged, count(&outside, rows).await), (1, 0), "{left}");
    }
}
