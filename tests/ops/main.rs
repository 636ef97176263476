//! The example `ops`, run as operators run it: what it prints, its exit codes, and what it does, seen through another connection.
#![cfg(unix)]
#![allow(unreachable_pub, reason = "nothing outside of the tests is reached")]
#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy takes the modules of a test for production code"
)]

mod confirmation;
mod hostile;
mod records;
#[cfg(feature = "redis")]
mod redis;
#[path = "../server/mod.rs"]
mod server;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
#[path = "../servers/mod.rs"]
mod servers;
mod shop;
mod tool;

macro_rules! on_every_store {
    (@$shop:ident $($scenario:ident)*) => {
        mod $shop {
            $(
                #[tokio::test]
                async fn $scenario() {
                    if let Some(shop) = crate::shop::$shop().await {
                        crate::records::$scenario(shop).await;
                    }
                }
            )*
        }
    };
    ($($scenarios:tt)*) => {
        on_every_store!(@sqlite_lease $($scenarios)*);
        on_every_store!(@sqlite_transaction $($scenarios)*);
        #[cfg(feature = "postgres")]
        on_every_store!(@postgres_lease $($scenarios)*);
        #[cfg(feature = "postgres")]
        on_every_store!(@postgres_transaction $($scenarios)*);
        #[cfg(feature = "mysql")]
        on_every_store!(@mysql_lease $($scenarios)*);
        #[cfg(feature = "mysql")]
        on_every_store!(@mysql_transaction $($scenarios)*);
    };
}

on_every_store! {
    a_record_is_found_by_scope_and_header
    a_key_is_freed_by_those_who_mean_it
    unsettled_records_are_listed_and_all_are_counted
    expired_records_are_purged_in_batches
    a_table_that_is_missing_or_of_a_later_release_is_told
}

// It has no tables, and nothing to purge.
#[cfg(feature = "redis")]
on_every_store!(@redis_lease
    a_record_is_found_by_scope_and_header
    a_key_is_freed_by_those_who_mean_it
    unsettled_records_are_listed_and_all_are_counted
);
