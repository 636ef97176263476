//! The transaction store.

use tower_idempotency::{
    StoreErrorKind,
    postgres::TransactionStore,
    store::{Claim, RecordState, Reservation, Store},
};

use super::database;
use crate::postgres_support::*;

#[tokio::test]
async fn writes_and_response_commit_together() {
    let database = database!();
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
    let database = database!();
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
    let database = database!();
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
    let database = database!();
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

#[tokio::test]
async fn the_pool_may_be_used_beside_the_transaction() {
    let database = database!();
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
    let database = database!();
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
    let database = database!();
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
async fn a_claim_without_its_transaction_can_settle_nothing_of_anothers() {
    let database = database!();
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
    let database = database!();
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
    let database = database!();
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
    let database = database!();
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

#[tokio::test]
async fn the_same_key_in_another_table_is_another_one() {
    let database = database!();
    let store = database.transactions(4).await;
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
