//! What a client relies on, on each of the stores: the same scenarios for all of them, effects read through a second connection.
//!
//! The stores on a server are tested where there is one.
#![cfg(all(feature = "memory", feature = "sqlite"))]
#![allow(unreachable_pub, reason = "nothing outside of the tests is reached")]
#![allow(
    clippy::panic,
    reason = "clippy takes the modules of a test for production code, and one of the handlers is to panic"
)]

mod app;
mod backends;
mod duplicates;
mod grpc;
mod listing;
mod pools;
mod runs;
#[cfg(all(unix, any(feature = "mysql", feature = "postgres", feature = "redis")))]
#[path = "../servers/mod.rs"]
mod servers;
#[path = "../sqlite_support/mod.rs"]
mod sqlite_support;
mod steps;
#[path = "../support/mod.rs"]
mod support;

macro_rules! on_every_store {
    (@$backend:ident $($group:ident::$scenario:ident)*) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    if let Some(backend) = crate::backends::$backend().await {
                        crate::$group::$scenario(backend).await;
                    }
                }
            )*
        }
    };
    ($($scenarios:tt)*) => {
        on_every_store!(@memory $($scenarios)*);
        on_every_store!(@sqlite_lease $($scenarios)*);
        on_every_store!(@sqlite_transaction $($scenarios)*);
        #[cfg(all(unix, feature = "postgres"))]
        on_every_store!(@postgres_lease $($scenarios)*);
        #[cfg(all(unix, feature = "postgres"))]
        on_every_store!(@postgres_transaction $($scenarios)*);
        #[cfg(all(unix, feature = "mysql"))]
        on_every_store!(@mysql_lease $($scenarios)*);
        #[cfg(all(unix, feature = "mysql"))]
        on_every_store!(@mysql_transaction $($scenarios)*);
        #[cfg(all(unix, feature = "redis"))]
        on_every_store!(@redis $($scenarios)*);
        #[cfg(all(unix, feature = "redis"))]
        on_every_store!(@redis_cluster $($scenarios)*);
    };
}

on_every_store! {
    duplicates::fifty_equal_requests_at_once_through_two_layers_run_once
    duplicates::a_waiter_that_looks_while_the_result_is_on_its_way_never_runs
    duplicates::another_body_or_path_is_refused_during_the_run_and_after_it
    duplicates::keys_and_scopes_are_told_apart_byte_by_byte
    duplicates::every_kind_of_response_is_replayed_byte_for_byte
    duplicates::a_response_over_the_limit_is_delivered_and_remembered_as_done
    runs::a_failed_run_is_undone_or_its_outcome_is_unknown
    runs::a_refusal_of_the_handler_may_be_retried_unless_it_is_final
    runs::a_run_goes_on_when_its_caller_has_gone
    runs::an_inline_run_that_is_dropped_is_undone_or_unknown
    runs::a_key_is_new_after_its_retention
    pools::handlers_on_a_lease_store_may_have_the_whole_pool
    runs::fences_grow_from_run_to_run_also_when_a_key_was_free_between_them
    runs::an_operator_finds_a_record_by_scope_and_header_and_frees_the_key
    grpc::a_call_is_replayed_with_its_trailers_byte_for_byte
    grpc::a_call_that_fails_in_its_trailers_is_undone_or_its_outcome_is_unknown
    steps::a_run_that_takes_over_goes_on_after_the_steps_of_the_one_before
    listing::unsettled_runs_are_listed_oldest_first_and_everything_is_counted
    listing::a_replay_tells_what_is_left_of_the_retention
}
