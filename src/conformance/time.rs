//! Clauses 29 to 33: leases, and when records expire.

use super::{
    Harness,
    case::{Case, LONG, SHORT, random_fingerprint, response, run_again, terms, terms_of},
};
use crate::store::RecordState;

/// Clause 29.
pub async fn an_expired_record_is_absent(harness: &dyn Harness) {
    let case = Case::new(harness, "29 an_expired_record_is_absent");
    let forgotten = case.on_random_key();
    for case in [&case, &forgotten] {
        let claim = case.acquire(&terms()).await;
        case.complete_for(&claim, &response(b"first"), SHORT).await;
    }
    harness.pass(SHORT).await;
    let record = case.inspect().await;
    case.check(record.is_none(), "no record", &record);
    let was_there = forgotten.forget().await;
    case.check(!was_there, "nothing to forget", &was_there);
    // Overwritten as if it weren't there, also by another request.
    let mut another = case.on(case.key);
    another.fingerprint = random_fingerprint();
    another.is_free().await;
}

/// Clause 30.
pub async fn retention_counts_from_completion(harness: &dyn Harness) {
    let case = Case::new(harness, "30 retention_counts_from_completion");
    let claim = case.acquire(&terms_of(SHORT, SHORT)).await;
    let response = response(b"first");
    case.complete(&claim, &response).await;
    let at_first = case.replays(&terms(), &response).await;
    case.check(
        at_first <= LONG && at_first > LONG / 2,
        "the whole retention to be left",
        &at_first,
    );
    harness.pass(SHORT * 3).await;
    let left = case.replays(&terms(), &response).await;
    // By a backend's clock, which may be a coarse one.
    let is_less = left <= at_first.saturating_sub(SHORT * 2);
    case.check(is_less, "less of the retention to be left", &left);
}

/// Clause 31.
pub async fn an_unsettled_record_outlives_its_lease(harness: &dyn Harness) {
    let case = Case::new(harness, "31 an_unsettled_record_outlives_its_lease");
    let (kept, gone) = (case.on_random_key(), case.on_random_key());
    kept.acquire(&terms_of(SHORT, LONG)).await;
    gone.acquire(&terms_of(SHORT, SHORT)).await;
    case.acquire(&terms_of(LONG, SHORT)).await;
    harness.pass(SHORT * 2).await;
    kept.is_unknown().await;
    gone.is_free().await;
    case.is_in_flight().await;
}

/// Clause 32.
pub async fn renewing_moves_lease_and_expiry(harness: &dyn Harness) {
    let case = Case::new(harness, "32 renewing_moves_lease_and_expiry");
    let (sooner, gone) = (case.on_random_key(), case.on_random_key());

    let claim = case.acquire(&terms()).await;
    case.ok("renew", case.store.renew(&claim, LONG * 10).await);
    let claim = sooner.acquire(&terms()).await;
    sooner.ok("renew", sooner.store.renew(&claim, SHORT).await);
    let claim = gone.acquire(&terms_of(LONG, SHORT)).await;
    gone.ok("renew", gone.store.renew(&claim, SHORT).await);
    harness.pass(SHORT * 2).await;

    let record = case.inspect().await;
    let later = record.as_ref().is_some_and(|record| {
        let lease_moved =
            matches!(record.state, RecordState::InFlight { lease_left } if lease_left > LONG * 9);
        lease_moved && record.expires_in > LONG * 10
    });
    case.check(later, "lease and expiry to be later", &record);
    sooner.is_unknown().await;
    gone.is_free().await;
}

/// Clause 33.
pub async fn abandoning_sets_the_expiry(harness: &dyn Harness) {
    let case = Case::new(harness, "33 abandoning_sets_the_expiry");
    let gone = case.on_random_key();

    let claim = case.acquire(&terms_of(SHORT, SHORT)).await;
    case.abandon(&claim).await;
    let claim = gone.acquire(&terms()).await;
    gone.ok("abandon", gone.store.abandon(&claim, SHORT).await);

    harness.pass(SHORT * 2).await;
    let second = case.acquire(&run_again()).await;
    case.check(second.attempt() == 2, "attempt 2", &second);
    gone.is_free().await;
}
