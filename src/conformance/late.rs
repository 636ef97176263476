//! Clauses 23 to 28: claims that outlive their lease or their record.

use super::{
    Harness,
    case::{Case, LONG, SHORT, response, run_again, terms, terms_of},
};
use crate::store::Claim;

/// Clause 23.
pub async fn a_late_owner_changes_nothing(harness: &dyn Harness) {
    let case = Case::new(harness, "23 a_late_owner_changes_nothing");
    let late = lapsed_claim(harness, &case).await;
    let claim = case.acquire(&run_again()).await;
    loses_every_call(&case, &late).await;
    case.is_in_flight().await;
    let response = response(b"second");
    case.complete(&claim, &response).await;
    loses_every_call(&case, &late).await;
    case.is_replayed(&response).await;
}

/// Clause 24.
pub async fn a_lapsed_claim_may_renew(harness: &dyn Harness) {
    let case = Case::new(harness, "24 a_lapsed_claim_may_renew");
    let claim = lapsed_claim(harness, &case).await;
    case.ok("renew", case.store.renew(&claim, LONG).await);
    case.is_in_flight().await;
    case.release(&claim).await;
}

/// Clause 25.
pub async fn a_lapsed_claim_may_settle(harness: &dyn Harness) {
    let case = Case::new(harness, "25 a_lapsed_claim_may_settle");
    let claim = lapsed_claim(harness, &case).await;
    let response = response(b"late");
    case.complete(&claim, &response).await;
    case.is_replayed(&response).await;

    let released = case.on_random_key();
    let claim = lapsed_claim(harness, &released).await;
    released.release(&claim).await;
    released.is_free().await;

    let abandoned = case.on_random_key();
    let claim = lapsed_claim(harness, &abandoned).await;
    abandoned.abandon(&claim).await;
    abandoned.is_unknown().await;
}

/// Clause 26.
pub async fn a_lost_record_is_completed(harness: &dyn Harness) {
    let case = Case::new(harness, "26 a_lost_record_is_completed");
    let claim = lost_claim(&case).await;
    let response = response(b"first");
    case.complete(&claim, &response).await;
    case.is_replayed(&response).await;
    case.is_a_mismatch(&terms()).await;
    // It is the claim's own record again.
    case.complete(&claim, &response).await;

    let expired = case.on_random_key();
    let claim = expired.acquire(&terms_of(SHORT, SHORT)).await;
    harness.pass(SHORT * 2).await;
    expired.complete(&claim, &response).await;
    expired.is_replayed(&response).await;
}

/// Clause 27.
pub async fn a_lost_record_is_abandoned(harness: &dyn Harness) {
    let case = Case::new(harness, "27 a_lost_record_is_abandoned");
    let claim = lost_claim(&case).await;
    case.abandon(&claim).await;
    case.is_unknown().await;
    case.is_a_mismatch(&run_again()).await;
    let second = case.acquire(&run_again()).await;
    case.check(second.attempt() == 2, "attempt 2", &second);
    case.check(second.fence() > claim.fence(), &claim, &second);
}

/// Clause 28.
pub async fn releasing_a_lost_record_is_ok(harness: &dyn Harness) {
    let case = Case::new(harness, "28 releasing_a_lost_record_is_ok");
    let claim = lost_claim(&case).await;
    case.lost("renew", case.store.renew(&claim, LONG).await);
    case.release(&claim).await;
    case.is_free().await;
}

/// A claim whose lease is over, and whose record is there.
async fn lapsed_claim(harness: &dyn Harness, case: &Case) -> Claim {
    let claim = case.acquire(&terms_of(SHORT, LONG)).await;
    harness.pass(SHORT * 2).await;
    claim
}

/// A claim whose record is gone.
async fn lost_claim(case: &Case) -> Claim {
    let claim = case.acquire(&terms()).await;
    let forgotten = case.forget().await;
    case.check(forgotten, "forget to find the record", &forgotten);
    claim
}

async fn loses_every_call(case: &Case, late: &Claim) {
    let response = response(b"late");
    case.lost("renew", case.store.renew(late, LONG).await);
    case.lost("complete", case.store.complete(late, &response, LONG).await);
    case.lost("release", case.store.release(late).await);
    case.lost("abandon", case.store.abandon(late, LONG).await);
}
