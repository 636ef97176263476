//! The payments example as a process of its own, on each of the databases that it speaks to.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    unreachable_pub,
    reason = "each test binary uses some of it"
)]

mod app;
mod database;

pub use app::App;
pub use database::{Charge, Database};

/// Each of these tests on each of the databases: `on_each_database!(a_test, another_test);`, where a test is an async function
/// of a [`Database`].
macro_rules! on_each_database {
    ($($test:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test]
            async fn $test() {
                super::$test(crate::payments_app::Database::sqlite()).await;
            })+
        }
        #[cfg(feature = "postgres")]
        mod on_postgres {
            $(#[tokio::test]
            async fn $test() {
                if let Some(database) = crate::payments_app::Database::postgres().await {
                    super::$test(database).await;
                }
            })+
        }
        #[cfg(feature = "mysql")]
        mod on_mariadb {
            $(#[tokio::test]
            async fn $test() {
                if let Some(database) = crate::payments_app::Database::mariadb().await {
                    super::$test(database).await;
                }
            })+
        }
    };
}
pub(crate) use on_each_database;
