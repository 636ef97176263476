//! Clauses L1 to L6: what [`ListRecords`] tells of records whose keys nobody knows.

use std::time::Duration;

use super::{
    ListingHarness,
    case::{Case, LONG, SHORT, run_again, terms, terms_of},
};
use crate::store::{Claim, ListRecords, Listed, RecordState};

/// Clause L1.
pub async fn an_unsettled_record_is_listed(harness: &dyn ListingHarness) {
    let case = Case::new(harness, "L1 an_unsettled_record_is_listed");
    let (lapsed, abandoned) = (case.on_random_key(), case.on_random_key());
    let running = case.acquire(&terms()).await;
    let late = lapsed.acquire(&terms_of(SHORT, LONG)).await;
    let given_up = abandoned.acquire(&terms()).await;
    abandoned.abandon(&given_up).await;
    harness.pass(SHORT * 2).await;

    let listing = harness.listing();
    let state = listed(&case, &*listing, &running).await;
    case.check(
        matches!(state, RecordState::InFlight { lease_left } if lease_left <= LONG),
        "InFlight",
        &state,
    );
    for (case, claim) in [(&lapsed, &late), (&abandoned, &given_up)] {
        let state = listed(case, &*listing, claim).await;
        case.check(matches!(state, RecordState::Unknown), "Unknown", &state);
    }
}

/// Clause L2.
pub async fn an_age_counts_from_the_last_claim(harness: &dyn ListingHarness) {
    let case = Case::new(harness, "L2 an_age_counts_from_the_last_claim");
    let (again, young) = (case.on_random_key(), case.on_random_key());
    let first = again.acquire(&terms()).await;
    again.abandon(&first).await;
    case.acquire(&terms()).await;
    harness.pass(SHORT * 3).await;
    again.acquire(&run_again()).await;
    young.acquire(&terms()).await;

    let listing = harness.listing();
    let listed = all(&case, &*listing, Duration::ZERO, u32::MAX).await;
    let age = |case: &Case| {
        let of_case = listed.iter().find(|listed| listed.key == case.key);
        of_case.map_or_else(|| case.broken("a record", &listed), |listed| listed.age)
    };
    // By a backend's clock, which may be a coarse one.
    let old = age(&case);
    case.check(old >= SHORT * 2, "an age of what has passed", &old);
    for younger in [age(&again), age(&young)] {
        case.check(younger <= old.saturating_sub(SHORT), old, &younger);
    }
    let listed = all(&case, &*listing, SHORT * 2, u32::MAX).await;
    let has_case = listed.iter().any(|listed| listed.key == case.key);
    case.check(has_case, "a record of this age", &listed);
    let too_young = listed.iter().find(|listed| listed.age < SHORT * 2);
    case.check(too_young.is_none(), "nothing younger", &too_young);
    for case in [&case, &again, &young] {
        let found = find(case, &*listing, LONG).await;
        case.check(found.is_none(), "nothing as old as that", &found);
    }
}

/// Clause L3.
pub async fn a_settled_key_is_not_listed(harness: &dyn ListingHarness) {
    let case = Case::new(harness, "L3 a_settled_key_is_not_listed");
    case.completed().await;
    let (released, forgotten, expired) = (
        case.on_random_key(),
        case.on_random_key(),
        case.on_random_key(),
    );
    let claim = released.acquire(&terms()).await;
    released.release(&claim).await;
    forgotten.completed().await;
    forgotten.forget().await;
    // Unsettled on a lease store, and gone with its transaction on another.
    let claim = expired.acquire(&terms_of(SHORT, SHORT)).await;
    expired.ok("abandon", expired.store.abandon(&claim, SHORT).await);
    harness.pass(SHORT * 2).await;

    let listing = harness.listing();
    for case in [&case, &released, &forgotten, &expired] {
        let found = find(case, &*listing, Duration::ZERO).await;
        case.check(found.is_none(), "nothing", &found);
    }
}

/// Clause L4.
pub async fn pages_miss_no_record(harness: &dyn ListingHarness) {
    let case = Case::new(harness, "L4 pages_miss_no_record");
    let cases: Vec<Case> = (0..5).map(|_| case.on_random_key()).collect();
    for case in &cases {
        case.acquire(&terms()).await;
    }
    let listing = harness.listing();
    for limit in [1, 2, 5, u32::MAX] {
        let all = all(&case, &*listing, Duration::ZERO, limit).await;
        for case in &cases {
            let times = all.iter().filter(|listed| listed.key == case.key).count();
            let is_right = times == 1 || (times > 1 && harness.may_repeat());
            case.check(is_right, "each record once", &(limit, times));
        }
    }
    let none = all(&case, &*listing, Duration::ZERO, 0).await;
    case.check(none.is_empty(), "nothing in a page of 0", &none);
}

/// Clause L5. Others may make records at the same time.
pub async fn completed_records_are_counted(harness: &dyn ListingHarness) {
    let case = Case::new(harness, "L5 completed_records_are_counted");
    for _ in 0..3 {
        case.on_random_key().completed().await;
    }
    let counts = case.ok("count_records", harness.listing().count_records().await);
    case.check(counts.completed >= 3, "three at least", &counts);
    // Of each response, its body at least.
    let bytes = counts.response_bytes.is_none_or(|bytes| bytes >= 3 * 32);
    case.check(bytes, "the bytes of their responses", &counts);
}

/// Clause L6.
pub async fn unsettled_records_are_counted(harness: &dyn ListingHarness) {
    let case = Case::new(harness, "L6 unsettled_records_are_counted");
    let (lapsed, abandoned) = (case.on_random_key(), case.on_random_key());
    case.acquire(&terms()).await;
    lapsed.acquire(&terms_of(SHORT, LONG)).await;
    let claim = abandoned.acquire(&terms()).await;
    abandoned.abandon(&claim).await;
    harness.pass(SHORT * 2).await;
    let counts = case.ok("count_records", harness.listing().count_records().await);
    let counted = counts.in_flight >= 1 && counts.unknown >= 2;
    case.check(counted, "one in flight and two unknown at least", &counts);
}

/// The state of the record, after a look at all the rest of it.
async fn listed(case: &Case, listing: &dyn ListRecords, claim: &Claim) -> RecordState {
    let Some(Listed { record, .. }) = find(case, listing, Duration::ZERO).await else {
        case.broken("a listed record", &claim)
    };
    case.check(record.fingerprint == case.fingerprint, claim, &record);
    case.check(record.attempt == claim.attempt(), claim, &record);
    case.check(record.fence == claim.fence(), claim, &record);
    case.check(
        record.expires_in <= LONG * 2 && !record.expires_in.is_zero(),
        "an expiry within lease and retention",
        &record,
    );
    record.state
}

async fn find(case: &Case, listing: &dyn ListRecords, older_than: Duration) -> Option<Listed> {
    let all = all(case, listing, older_than, 100).await;
    all.into_iter().find(|listed| listed.key == case.key)
}

/// What all pages hold.
async fn all(
    case: &Case,
    listing: &dyn ListRecords,
    older_than: Duration,
    limit: u32,
) -> Vec<Listed> {
    let (mut found, mut next) = (Vec::new(), None);
    loop {
        let page = listing.list_unsettled(older_than, limit, next.as_ref());
        let page = case.ok("list_unsettled", page.await);
        let fits = page.records.len() as u64 <= u64::from(limit);
        case.check(fits, format_args!("{limit} at most"), &page);
        case.check(
            page.next.is_none() || page.next != next,
            "a next page",
            &page,
        );
        found.extend(page.records);
        next = page.next;
        if next.is_none() {
            return found;
        }
    }
}
