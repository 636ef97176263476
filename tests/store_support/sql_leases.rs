//! What holds for the lease stores on SQL databases alike, whose tables have the same name and columns.

use tower_idempotency::{
    StoreErrorKind,
    store::{Note, RecordState, Store, Takeover},
};

use super::{LEASE, RETENTION, assert_kind, claim, fresh_key, response, terms};

/// Sets the clock back by an hour, which is as if the times of the rows had moved on.
const SET_BACK: &str = "UPDATE tower_idempotency_leases
    SET fence = fence + 3600000000, lease_end = lease_end + 3600000000, expires = expires + 3600000000";
const EXPIRE: &str = "UPDATE tower_idempotency_leases SET lease_end = 1, expires = 1";

/// `execute` executes a statement in the store's database.
pub(crate) async fn what_was_freed_stays_free_when_the_clock_is_set_back(
    store: &dyn Store,
    execute: impl AsyncFn(&'static str),
) {
    let [released, forgotten, abandoned] = [fresh_key(), fresh_key(), fresh_key()];
    let claimed = claim(store, &released, &terms()).await;
    store.release(&claimed).await.unwrap();
    let claimed = claim(store, &forgotten, &terms()).await;
    let done = response("done");
    store.complete(&claimed, &done, RETENTION).await.unwrap();
    assert!(store.forget(&forgotten).await.unwrap());
    let claimed = claim(store, &abandoned, &terms()).await;
    store.abandon(&claimed, RETENTION).await.unwrap();
    execute(SET_BACK).await;

    // Their fences are ahead of the clock, which the next ones' must not fall behind.
    assert_eq!(store.purge_expired(10).await.unwrap(), 0);
    for key in [released, forgotten] {
        assert!(store.inspect(&key).await.unwrap().is_none());
        let again = claim(store, &key, &terms()).await;
        assert_eq!(again.attempt(), 1);
        assert!(again.fence() > claimed.fence() + 3_500_000_000);
    }
    let takeover = terms().with_takeover(Takeover::RunAgain);
    let taken = claim(store, &abandoned, &takeover).await;
    assert_eq!(taken.attempt(), 2);
}

/// What is late is written over what has expired, whoever had it, and takes nothing of it along. `count` reads a number.
pub(crate) async fn a_record_written_over_an_expired_one_has_its_fence_and_nothing_else_of_it(
    store: &dyn Store,
    execute: impl AsyncFn(&'static str),
    count: impl AsyncFn(&'static str) -> i64,
) {
    let (steps, key) = (store.steps().unwrap(), fresh_key());
    let late = claim(store, &key, &terms()).await;
    assert!(store.forget(&key).await.unwrap());
    let other = claim(store, &key, &terms()).await;
    steps.note(&other, &Note::new("step", "1")).await.unwrap();
    execute(EXPIRE).await;
    store.abandon(&late, RETENTION).await.unwrap();
    let record = store.inspect(&key).await.unwrap().unwrap();
    assert!(matches!(record.state, RecordState::Unknown));
    assert_eq!(record.fence, other.fence());

    let takeover = terms().with_takeover(Takeover::RunAgain);
    let taken = claim(store, &key, &takeover).await;
    assert!(steps.notes(&taken).await.unwrap().is_empty());
    steps.note(&taken, &Note::new("step", "2")).await.unwrap();
    let done = response("done");
    store.complete(&taken, &done, RETENTION).await.unwrap();
    let noted = count("SELECT count(steps) FROM tower_idempotency_leases").await;
    assert_eq!(noted, 0);

    execute(EXPIRE).await;
    let last = claim(store, &key, &terms()).await;
    let saved = count("SELECT count(response) FROM tower_idempotency_leases").await;
    assert_eq!(saved, 0);
    execute(EXPIRE).await;
    assert_kind(store.renew(&last, LEASE).await, StoreErrorKind::LostClaim);
}
