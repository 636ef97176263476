//! Round trips, counted by a proxy.

use servers::Proxy;
use sqlx::PgPool;
use tower_idempotency::{
    StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::{Note, Reservation, Store, Takeover},
};

use super::facts::{insert_claim, waits};
use crate::{
    postgres_support::{self, *},
    servers,
};

/// A database behind a proxy, and a pool of one connection through it.
pub(super) async fn behind_proxy(cached: usize) -> Option<(Database, Proxy, PgPool)> {
    let database = Database::new().await?;
    let proxy = Proxy::start(&database.0);
    let options: sqlx::postgres::PgConnectOptions = proxy.url().parse().unwrap();
    let pool = pool(options.statement_cache_capacity(cached), 1).await;
    Some((database, proxy, pool))
}

/// How many round trips a call makes.
async fn trips<T>(proxy: &Proxy, call: impl Future<Output = T>) -> (usize, T) {
    let before = proxy.round_trips();
    let output = call.await;
    (proxy.round_trips() - before, output)
}

#[tokio::test]
async fn a_lease_store_makes_one_round_trip_per_call() {
    for (cached, complete) in [(100, 1), (0, 4)] {
        let Some((_database, proxy, pool)) = behind_proxy(cached).await else {
            return;
        };
        let store = LeaseStore::new(pool);
        // Each statement is prepared once per connection.
        use_leases(&store, &proxy).await;
        let measured = use_leases(&store, &proxy).await;
        let expected = [
            ("reserve", 1),
            ("in flight", 1),
            ("renew", 1),
            ("complete", complete),
            ("replay", 1),
            ("mismatch", 1),
            ("late release", 2),
            ("release", 1),
            ("reserve a released key", 2),
            ("abandon", 1),
            ("unknown", 1),
            ("note", complete),
            ("take over", 2),
            ("notes", 1),
            ("reserve again", 2),
            ("inspect", 1),
            ("forget", 1),
            ("purge", 1),
            ("ping", 1),
        ];
        assert_eq!(measured, expected, "{cached}");
    }
}

async fn use_leases(store: &LeaseStore, proxy: &Proxy) -> Vec<(&'static str, usize)> {
    let mut measured = Vec::new();
    let (key, other) = (fresh_key(), fresh_key());
    let own = terms();
    let (count, claimed) = trips(proxy, claim(store, &key, &own)).await;
    measured.push(("reserve", count));
    let (count, _) = trips(proxy, reserve(store, &key)).await;
    measured.push(("in flight", count));
    let (count, renewed) = trips(proxy, store.renew(&claimed, LEASE)).await;
    renewed.unwrap();
    measured.push(("renew", count));
    let saved = response("done");
    let (count, completed) = trips(proxy, store.complete(&claimed, &saved, RETENTION)).await;
    completed.unwrap();
    measured.push(("complete", count));
    let (count, answer) = trips(proxy, reserve(store, &key)).await;
    assert_replays(&answer, "done");
    measured.push(("replay", count));
    let (count, _) = trips(proxy, store.reserve(&key, &fingerprint(2), &own)).await;
    measured.push(("mismatch", count));
    let (count, late) = trips(proxy, store.release(&claimed)).await;
    assert_kind(late, StoreErrorKind::LostClaim);
    measured.push(("late release", count));

    let claimed = claim(store, &other, &terms()).await;
    let (count, released) = trips(proxy, store.release(&claimed)).await;
    released.unwrap();
    measured.push(("release", count));
    let (count, claimed) = trips(proxy, claim(store, &other, &terms())).await;
    measured.push(("reserve a released key", count));
    let (count, abandoned) = trips(proxy, store.abandon(&claimed, RETENTION)).await;
    abandoned.unwrap();
    measured.push(("abandon", count));
    let (count, answer) = trips(proxy, reserve(store, &other)).await;
    assert!(matches!(answer, Reservation::Unknown));
    measured.push(("unknown", count));
    let steps = store.steps().unwrap();
    let note = Note::new("step", "secret");
    let (count, noted) = trips(proxy, steps.note(&claimed, &note)).await;
    noted.unwrap();
    measured.push(("note", count));
    let again = terms().with_takeover(Takeover::RunAgain);
    let (count, taken) = trips(proxy, claim(store, &other, &again)).await;
    measured.push(("take over", count));
    let (count, notes) = trips(proxy, steps.notes(&taken)).await;
    assert_eq!(notes.unwrap(), [note]);
    measured.push(("notes", count));
    let (count, _) = trips(proxy, claim(store, &other, &again)).await;
    measured.push(("reserve again", count));
    let (count, _) = trips(proxy, store.inspect(&other)).await;
    measured.push(("inspect", count));
    let (count, _) = trips(proxy, store.forget(&other)).await;
    measured.push(("forget", count));
    let (count, _) = trips(proxy, store.purge_expired(100)).await;
    measured.push(("purge", count));
    let (count, _) = trips(proxy, store.ping()).await;
    measured.push(("ping", count));
    measured
}

/// The statement that waited saw neither row, and asks once more.
#[tokio::test]
async fn a_claim_that_is_answered_by_no_row_looks_once_more() {
    for cached in [100, 0] {
        let Some((database, proxy, pool)) = behind_proxy(cached).await else {
            return;
        };
        let (store, outside) = (LeaseStore::new(pool), database.pool(2).await);
        claim(&store, &fresh_key(), &terms()).await;
        for (commits, expected) in [(true, 2), (false, 1)] {
            let key = fresh_key();
            let mut making = outside.begin().await.unwrap();
            insert_claim(&mut making, &key).await;
            let ended = async {
                until(|| waits(&outside)).await;
                if commits {
                    making.commit().await.unwrap();
                } else {
                    making.rollback().await.unwrap();
                }
            };
            let ((count, answer), ()) = tokio::join!(trips(&proxy, reserve(&store, &key)), ended);
            match answer {
                Reservation::InFlight { .. } => assert!(commits),
                Reservation::Acquired(_) => assert!(!commits),
                other => panic!("{other:?}"),
            }
            assert_eq!(count, expected, "{cached}, {commits}");
        }
    }
}

/// Two more than BEGIN and COMMIT alone.
#[tokio::test]
async fn a_transaction_store_makes_two_round_trips_before_the_handler_and_two_after_it() {
    for (cached, complete) in [(100, 2), (0, 3)] {
        let Some((database, proxy, pool)) = behind_proxy(cached).await else {
            return;
        };
        let isolated = {
            let options = (*pool.connect_options()).clone();
            let setting = ("default_transaction_isolation", "serializable");
            postgres_support::pool(options.options([setting]), 1).await
        };
        let other = database.transactions(1).await;
        for (pool, answered) in [(pool, 2), (isolated, 1)] {
            let store = TransactionStore::new(pool.clone());
            use_transactions(&store, &other, (&proxy, &pool)).await;
            let measured = use_transactions(&store, &other, (&proxy, &pool)).await;
            let expected = [
                ("reserve", 2),
                ("duplicate here", 0),
                ("complete", complete),
                ("complete again", 0),
                ("replay", answered),
                ("release", 2),
                ("duplicate elsewhere", answered),
                ("inspect", 1),
                ("forget", 1),
                ("purge", 1),
                ("ping", 1),
            ];
            assert_eq!(measured, expected, "{cached}");
        }
    }
}

async fn use_transactions(
    store: &TransactionStore,
    other: &TransactionStore,
    (proxy, pool): (&Proxy, &PgPool),
) -> Vec<(&'static str, usize)> {
    let mut measured = Vec::new();
    let key = fresh_key();
    let (count, claimed) = trips(proxy, claim(store, &key, &terms())).await;
    measured.push(("reserve", count));
    let (count, _) = trips(proxy, reserve(store, &key)).await;
    measured.push(("duplicate here", count));
    let saved = response("done");
    for name in ["complete", "complete again"] {
        let (count, done) = trips(proxy, store.complete(&claimed, &saved, RETENTION)).await;
        done.unwrap();
        measured.push((name, count));
    }
    let (count, answer) = trips(proxy, reserve(store, &key)).await;
    assert_replays(&answer, "done");
    measured.push(("replay", count));
    // The rollback is left to the connection's way back into the pool.
    drop(pool.acquire().await.unwrap());
    let claimed = claim(store, &fresh_key(), &terms()).await;
    let (count, released) = trips(proxy, store.release(&claimed)).await;
    released.unwrap();
    measured.push(("release", count));
    let elsewhere = claim(other, &fresh_key(), &terms()).await;
    let (count, answer) = trips(proxy, reserve(store, elsewhere.key())).await;
    assert!(matches!(answer, Reservation::InFlight { .. }));
    measured.push(("duplicate elsewhere", count));
    drop(pool.acquire().await.unwrap());
    other.release(&elsewhere).await.unwrap();
    let (count, _) = trips(proxy, store.inspect(&key)).await;
    measured.push(("inspect", count));
    let (count, _) = trips(proxy, store.forget(&key)).await;
    measured.push(("forget", count));
    let (count, _) = trips(proxy, store.purge_expired(100)).await;
    measured.push(("purge", count));
    let (count, _) = trips(proxy, store.ping()).await;
    measured.push(("ping", count));
    measured
}
