/// Makes one test of each clause that binds a store of this kind, `lease` or `transaction`; and, for a store that implements
/// [`ListRecords`](crate::store::ListRecords), in a module of their own, of those of `lease_listing` or `transaction_listing`; and for one
/// that has [steps](crate::store::Store::steps), likewise, of those of `steps`.
///
/// What follows the kind is an async fn (or closure) without arguments that makes a [`Harness`](crate::conformance::Harness)
/// (for a listing, a [`ListingHarness`](crate::conformance::ListingHarness));
/// every test calls it. Attributes in front of the kind take the place of `#[tokio::test]`.
///
/// ```
/// # mod one_store {
/// # use std::{sync::Arc, time::Duration};
/// # use tower_idempotency::{MemoryStore, conformance::Harness, store::Store};
/// # struct Mine(MemoryStore);
/// # #[async_trait::async_trait]
/// # impl Harness for Mine {
/// #     fn store(&self) -> Arc<dyn Store> { Arc::new(self.0.clone()) }
/// #     async fn pass(&self, time: Duration) { tokio::time::pause(); tokio::time::advance(time).await; tokio::time::resume() }
/// # }
/// tower_idempotency::conformance_tests!(lease: async || Mine(MemoryStore::new()));
/// # }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($kind:ident: $harness:expr) => {
        $crate::conformance_tests!(#[tokio::test] $kind: $harness);
    };
    ($(#[$attribute:meta])+ $kind:ident: $harness:expr) => {
        $crate::__conformance_clauses!($kind, [$crate::__conformance_test] [$(#[$attribute])+] $harness);
    };
}

/// One test.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_test {
    ($group:ident::$clause:ident, [$($attributes:tt)+] $harness:expr) => {
        $($attributes)+
        async fn $clause() {
            let make = $harness;
            $crate::conformance::$group::$clause(&make().await).await;
        }
    };
}

/// Calls a macro for each clause that binds a store of this kind: with the path of the check behind
/// `tower_idempotency::conformance`, and what was passed on.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_clauses {
    (lease, $($rest:tt)+) => {
        $crate::__conformance_clauses!(all, $($rest)+);
        $crate::__conformance_clauses!(@[
            reserving::another_request_takes_nothing_over
            reserving::a_repeated_reserve_is_the_same_claim
            reserving::a_lapsed_claim_is_unknown_under_refuse
            reserving::a_lapsed_claim_is_taken_over_under_run_again
            reserving::the_fence_grows_with_a_takeover
            settling::an_abandoned_key_is_unknown
            settling::an_abandoned_claim_is_settled
            late::a_late_owner_changes_nothing
            late::a_lapsed_claim_may_renew
            late::a_lapsed_claim_may_settle
            late::a_lost_record_is_completed
            late::a_lost_record_is_abandoned
            late::releasing_a_lost_record_is_ok
            time::an_unsettled_record_outlives_its_lease
            time::renewing_moves_lease_and_expiry
            time::abandoning_sets_the_expiry
            operating::an_unsettled_record_can_be_inspected
            operating::purging_keeps_claims
            operating::a_lease_store_says_so
        ] $($rest)+);
    };
    (transaction, $($rest:tt)+) => {
        $crate::__conformance_clauses!(all, $($rest)+);
        $crate::__conformance_clauses!(@[
            transaction::a_repeated_reserve_is_in_flight
            transaction::an_abandoned_run_is_rolled_back
            transaction::a_rolled_back_claim_cant_complete
            transaction::renewing_a_transaction_is_ok
            transaction::a_transaction_store_says_so
        ] $($rest)+);
    };
    (lease_listing, $($rest:tt)+) => {
        $crate::__conformance_clauses!(transaction_listing, $($rest)+);
        $crate::__conformance_clauses!(@[
            listing::an_unsettled_record_is_listed
            listing::an_age_counts_from_the_last_claim
            listing::pages_miss_no_record
            listing::unsettled_records_are_counted
        ] $($rest)+);
    };
    (transaction_listing, $($rest:tt)+) => {
        $crate::__conformance_clauses!(@[
            listing::a_settled_key_is_not_listed
            listing::completed_records_are_counted
        ] $($rest)+);
    };
    (steps, $($rest:tt)+) => {
        $crate::__conformance_clauses!(@[
            steps::notes_outlive_their_run
            steps::the_first_note_of_a_name_stays
            steps::notes_at_once_are_all_kept
            steps::a_late_owner_notes_nothing
            steps::an_unsettled_claim_may_note
            steps::notes_end_with_their_run
            steps::noting_moves_no_time
            steps::large_notes_are_kept
        ] $($rest)+);
    };
    (all, $($rest:tt)+) => {
        $crate::__conformance_clauses!(@[
            reserving::a_new_key_is_acquired
            reserving::one_of_many_claimers_acquires
            reserving::every_byte_of_a_key_counts
            reserving::a_running_key_is_in_flight
            reserving::another_request_is_a_mismatch
            reserving::a_completed_key_is_replayed
            reserving::the_fence_only_grows
            settling::responses_are_replayed_exactly
            settling::a_repeated_complete_changes_nothing
            settling::nothing_undoes_a_completion
            settling::a_released_key_is_free
            time::an_expired_record_is_absent
            time::retention_counts_from_completion
            operating::a_completed_record_can_be_inspected
            operating::a_forgotten_key_is_free
            operating::purging_keeps_responses
            operating::a_ping_is_answered
            operating::fingerprints_are_stable
        ] $($rest)+);
    };
    (@[$group:ident::$clause:ident $($more:tt)*] $($rest:tt)+) => {
        $crate::__conformance_clauses!(@one $group::$clause, $($rest)+);
        $crate::__conformance_clauses!(@[$($more)*] $($rest)+);
    };
    (@[] $($rest:tt)+) => {};
    (@one $group:ident::$clause:ident, [$($callback:tt)+] $($arguments:tt)*) => {
        $($callback)+!($group::$clause, $($arguments)*);
    };
}
