//! Clauses 34 to 42: what operators and the layer ask a store besides claims.

use http::Request;

use super::{
    Harness,
    case::{Case, LONG, SHORT, response, terms, terms_of},
};
use crate::{
    FingerprintBy, SavedResponse,
    store::{Claim, RecordState, StoreKind},
};

/// Clause 34.
pub async fn a_completed_record_can_be_inspected(harness: &dyn Harness) {
    let case = Case::new(harness, "34 a_completed_record_can_be_inspected");
    let record = case.inspect().await;
    case.check(record.is_none(), "no record", &record);
    let claim = case.acquire(&terms()).await;
    let response = response(b"first");
    case.complete(&claim, &response).await;
    let state = inspected(&case, &claim).await;
    case.check(
        matches!(&state, RecordState::Completed(saved) if *saved == response),
        "Completed",
        &state,
    );
}

/// Clause 35.
pub async fn an_unsettled_record_can_be_inspected(harness: &dyn Harness) {
    let case = Case::new(harness, "35 an_unsettled_record_can_be_inspected");
    let (lapsed, abandoned) = (case.on_random_key(), case.on_random_key());

    let claim = case.acquire(&terms()).await;
    let state = inspected(&case, &claim).await;
    case.check(
        matches!(&state, RecordState::InFlight { lease_left } if *lease_left <= LONG && !lease_left.is_zero()),
        "InFlight",
        &state,
    );

    let claim = abandoned.acquire(&terms()).await;
    abandoned.abandon(&claim).await;
    let state = inspected(&abandoned, &claim).await;
    abandoned.check(matches!(state, RecordState::Unknown), "Unknown", &state);

    let claim = lapsed.acquire(&terms_of(SHORT, LONG)).await;
    harness.pass(SHORT * 2).await;
    let state = inspected(&lapsed, &claim).await;
    lapsed.check(matches!(state, RecordState::Unknown), "Unknown", &state);
}

/// Clause 36.
pub async fn a_forgotten_key_is_free(harness: &dyn Harness) {
    let case = Case::new(harness, "36 a_forgotten_key_is_free");
    case.completed().await;
    let (first, second) = (case.forget().await, case.forget().await);
    case.check(first && !second, "true, then false", &(first, second));
    let record = case.inspect().await;
    case.check(record.is_none(), "no record", &record);
    case.is_free().await;
}

/// Clause 37.
pub async fn purging_keeps_responses(harness: &dyn Harness) {
    let case = Case::new(harness, "37 purging_keeps_responses");
    let response = case.completed().await;
    for _ in 0..3 {
        let expiring = case.on_random_key();
        let claim = expiring.acquire(&terms()).await;
        expiring
            .complete_for(&claim, &SavedResponse::tombstone(), SHORT)
            .await;
    }
    harness.pass(SHORT).await;
    purge(&case).await;
    case.is_replayed(&response).await;
}

/// Clause 38.
pub async fn purging_keeps_claims(harness: &dyn Harness) {
    let case = Case::new(harness, "38 purging_keeps_claims");
    let (lapsed, abandoned) = (case.on_random_key(), case.on_random_key());
    case.acquire(&terms_of(LONG, SHORT)).await;
    lapsed.acquire(&terms_of(SHORT, LONG)).await;
    let claim = abandoned.acquire(&terms()).await;
    abandoned.abandon(&claim).await;
    harness.pass(SHORT * 2).await;
    purge(&case).await;
    case.is_in_flight().await;
    lapsed.is_unknown().await;
    abandoned.is_unknown().await;
}

/// Clause 39.
pub async fn a_ping_is_answered(harness: &dyn Harness) {
    let case = Case::new(harness, "39 a_ping_is_answered");
    case.ok("ping", case.store.ping().await);
}

/// Clause 40.
pub async fn fingerprints_are_stable(harness: &dyn Harness) {
    let case = Case::new(harness, "40 fingerprints_are_stable");
    let (parts, ()) = Request::post("/charges?dry=1")
        .body(())
        .unwrap_or_default()
        .into_parts();
    let by = FingerprintBy::exact();
    let (one, two) = (
        by.identity(&parts, Some(b"1")),
        by.identity(&parts, Some(b"2")),
    );
    let (first, again) = (case.store.fingerprint(&one), case.store.fingerprint(&one));
    case.check(first == again, first, &again);
    let in_form = case.store.fingerprint_as(&one, first.tag());
    case.check(in_form == Some(first), first, &in_form);
    let other = case.store.fingerprint(&two);
    case.check(first != other, "two fingerprints", &other);
}

/// Clause 41.
pub async fn a_lease_store_says_so(harness: &dyn Harness) {
    let case = Case::new(harness, "41 a_lease_store_says_so");
    let kind = case.store.kind();
    case.check(kind == StoreKind::Lease, StoreKind::Lease, &kind);
}

/// Purges until nothing is left to be purged.
async fn purge(case: &Case) {
    loop {
        let purged = case.ok("purge_expired", case.store.purge_expired(2).await);
        case.check(purged <= 2, "2 at most", &purged);
        if purged == 0 {
            break;
        }
    }
}

/// The state of the record, after a look at all the rest of it.
async fn inspected(case: &Case, claim: &Claim) -> RecordState {
    let Some(record) = case.inspect().await else {
        case.broken("a record", &claim)
    };
    case.check(
        record.fingerprint == case.fingerprint,
        case.fingerprint,
        &record,
    );
    case.check(record.attempt == claim.attempt(), claim, &record);
    case.check(record.fence == claim.fence(), claim, &record);
    case.check(
        record.expires_in <= LONG * 2 && !record.expires_in.is_zero(),
        "an expiry within lease and retention",
        &record,
    );
    record.state
}
