//! A check that can't fail shows nothing: here is a store with a flaw for each clause of a lease store.
#![cfg(all(feature = "memory", feature = "conformance"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a flaw changes one thing and leaves the rest"
)]

mod flawed;
mod listing;
mod steps;

use std::{collections::BTreeSet, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use tower_idempotency::{
    conformance::{self, Harness, ListingHarness},
    store::{ListRecords, Store},
};

use self::flawed::{Flaw, Flawed};

/// Flaws, each with the clause that is about it.
const FLAWS: &[(Flaw, &str)] = &[
    (Flaw::MakesItsOwnNonce, "1 a_new_key_is_acquired"),
    (Flaw::AcquiresTwice, "2 one_of_many_claimers_acquires"),
    (Flaw::AcquiresTheTenth, "2 one_of_many_claimers_acquires"),
    (Flaw::FreesForAll, "2 one_of_many_claimers_acquires"),
    (Flaw::NeverReleases, "2 one_of_many_claimers_acquires"),
    (Flaw::ReplaysOnce, "2 one_of_many_claimers_acquires"),
    (Flaw::PadsKeys, "3 every_byte_of_a_key_counts"),
    (Flaw::RetriesAtOnce, "4 a_running_key_is_in_flight"),
    (Flaw::LooksAtTheRunFirst, "5 another_request_is_a_mismatch"),
    (
        Flaw::LooksAtTheLeaseFirst,
        "6 another_request_takes_nothing_over",
    ),
    (Flaw::ReplaysOnce, "7 a_completed_key_is_replayed"),
    (
        Flaw::HandsOutAClaimOnce,
        "8 a_repeated_reserve_is_the_same_claim",
    ),
    (
        Flaw::AlwaysTakesOver,
        "10 a_lapsed_claim_is_unknown_under_refuse",
    ),
    (
        Flaw::ForgetsTheAttempt,
        "11 a_lapsed_claim_is_taken_over_under_run_again",
    ),
    (Flaw::KeepsOneFence, "12 the_fence_only_grows"),
    (Flaw::NeverTakesOver, "13 the_fence_grows_with_a_takeover"),
    (Flaw::DropsTrailers, "14 responses_are_replayed_exactly"),
    (
        Flaw::KeepsTheLastResponse,
        "15 a_repeated_complete_changes_nothing",
    ),
    (Flaw::ReleasesCompleted, "16 nothing_undoes_a_completion"),
    (Flaw::NeverReleases, "17 a_released_key_is_free"),
    (Flaw::AbandonsByLapse, "18 an_abandoned_key_is_unknown"),
    (Flaw::CompletesAbandoned, "19 an_abandoned_claim_is_settled"),
    (Flaw::IgnoresTheNonce, "23 a_late_owner_changes_nothing"),
    (Flaw::RefusesLapsed, "24 a_lapsed_claim_may_renew"),
    (Flaw::RefusesLapsed, "25 a_lapsed_claim_may_settle"),
    (Flaw::RefusesLost, "26 a_lost_record_is_completed"),
    (Flaw::RefusesLost, "27 a_lost_record_is_abandoned"),
    (Flaw::RefusesLost, "28 releasing_a_lost_record_is_ok"),
    (Flaw::NeverExpires, "29 an_expired_record_is_absent"),
    (
        Flaw::KeepsTheFirstRetention,
        "30 retention_counts_from_completion",
    ),
    (
        Flaw::TellsTheWholeRetention,
        "30 retention_counts_from_completion",
    ),
    (
        Flaw::ExpiresWithTheLease,
        "31 an_unsettled_record_outlives_its_lease",
    ),
    (Flaw::IgnoresRenewals, "32 renewing_moves_lease_and_expiry"),
    (Flaw::ForgetsOnAbandon, "33 abandoning_sets_the_expiry"),
    (Flaw::ShowsNothing, "34 a_completed_record_can_be_inspected"),
    (
        Flaw::ShowsLapsedAsRunning,
        "35 an_unsettled_record_can_be_inspected",
    ),
    (Flaw::SaysItForgotNothing, "36 a_forgotten_key_is_free"),
    (Flaw::PurgesEverything, "37 purging_keeps_responses"),
    (Flaw::PurgesEverything, "38 purging_keeps_claims"),
    (Flaw::IsDown, "39 a_ping_is_answered"),
    (Flaw::SaltsAnew, "40 fingerprints_are_stable"),
    (Flaw::NamesTheWrongKind, "41 a_lease_store_says_so"),
    (Flaw::ListsNoLapsed, "L1 an_unsettled_record_is_listed"),
    (
        Flaw::CountsFromTheFirstClaim,
        "L2 an_age_counts_from_the_last_claim",
    ),
    (
        Flaw::ListsWhateverAge,
        "L2 an_age_counts_from_the_last_claim",
    ),
    (Flaw::ListsSettled, "L3 a_settled_key_is_not_listed"),
    (Flaw::OverfillsPages, "L4 pages_miss_no_record"),
    (Flaw::SkipsTheLastOfAPage, "L4 pages_miss_no_record"),
    (Flaw::ListsTwice, "L4 pages_miss_no_record"),
    (Flaw::CountsNothing, "L5 completed_records_are_counted"),
    (Flaw::CountsNothing, "L6 unsettled_records_are_counted"),
    (Flaw::DropsNotesOnTakeover, "S1 notes_outlive_their_run"),
    (Flaw::KeepsTheLastNote, "S2 the_first_note_of_a_name_stays"),
    (Flaw::LosesNotesAtOnce, "S3 notes_at_once_are_all_kept"),
    (Flaw::IgnoresTheNonce, "S4 a_late_owner_notes_nothing"),
    (Flaw::RefusesLapsed, "S5 an_unsettled_claim_may_note"),
    (Flaw::NotesWhatIsOver, "S6 notes_end_with_their_run"),
    (Flaw::RenewsByNoting, "S7 noting_moves_no_time"),
    (Flaw::CutsNotes, "S8 large_notes_are_kept"),
];

struct Paused(Arc<Flawed>);

#[async_trait]
impl Harness for Paused {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<Flawed>::clone(&self.0)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

impl ListingHarness for Paused {
    fn listing(&self) -> Arc<dyn ListRecords> {
        Arc::<Flawed>::clone(&self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn every_clause_notices_the_flaw_that_it_is_about() {
    for (flaw, clause) in FLAWS {
        let broken = broken_clauses(*flaw).await;
        assert!(
            broken.contains(*clause),
            "{flaw:?} went unnoticed by {clause}, it was noticed by {broken:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn no_clause_finds_a_flaw_where_none_is() {
    assert_eq!(broken_clauses(Flaw::None).await, BTreeSet::new());
}

#[test]
fn there_is_a_flaw_for_every_clause() {
    let with_a_flaw: BTreeSet<_> = FLAWS.iter().map(|(_, clause)| name(clause)).collect();
    let clauses: BTreeSet<_> = lease_clauses()
        .into_iter()
        .map(|(clause, _)| clause)
        .collect();
    assert_eq!(with_a_flaw, clauses);
}

/// The clauses that panicked, as their panics name them.
async fn broken_clauses(flaw: Flaw) -> BTreeSet<String> {
    let mut broken = BTreeSet::new();
    for (clause, check) in lease_clauses() {
        let harness = Paused(Arc::new(Flawed::new(flaw)));
        let checked = tokio::spawn(async move { check(&harness).await }).await;
        if let Err(error) = checked {
            let panic = error.into_panic();
            let message = panic.downcast_ref::<String>().expect("a message");
            let named = message
                .strip_prefix("clause ")
                .and_then(|rest| rest.split_once(" is broken: "))
                .unwrap_or_else(|| panic!("{message:?} names no clause"))
                .0;
            assert_eq!(name(named), clause);
            broken.insert(named.to_owned());
        }
    }
    broken
}

fn name(numbered: &str) -> &str {
    numbered.split_once(' ').expect("a number and a name").1
}

type Check = for<'a> fn(&'a Paused) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

fn lease_clauses() -> Vec<(&'static str, Check)> {
    macro_rules! push {
        ($group:ident::$clause:ident, $clauses:ident) => {
            $clauses.push((stringify!($clause), |harness| {
                Box::pin(conformance::$group::$clause(harness))
            }));
        };
    }
    let mut clauses: Vec<(&'static str, Check)> = Vec::new();
    tower_idempotency::__conformance_clauses!(lease, [push] clauses);
    tower_idempotency::__conformance_clauses!(lease_listing, [push] clauses);
    tower_idempotency::__conformance_clauses!(steps, [push] clauses);
    clauses
}
