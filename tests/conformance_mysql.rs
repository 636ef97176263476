//! Both MySQL stores keep the contract, whatever the isolation and the time zone of the pool's sessions.
#![cfg(all(unix, feature = "mysql", feature = "conformance"))]

mod mysql_support;
mod servers;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use mysql_support::{Database, until};
use tokio::time::Instant;
use tower_idempotency::{
    conformance::{Harness, ListingHarness},
    store::{ListRecords, Store},
};

struct OnServer(Arc<dyn ListRecords>);

#[async_trait]
impl Harness for OnServer {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<dyn ListRecords>::clone(&self.0)
    }

    /// The server's clock is the machine's.
    async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        until(|| async { Instant::now() >= end }).await;
    }
}

impl ListingHarness for OnServer {
    fn listing(&self) -> Arc<dyn ListRecords> {
        Arc::clone(&self.0)
    }
}

async fn lease(database: Database, size: u32) -> OnServer {
    OnServer(Arc::new(database.lease(size).await))
}

async fn transaction(database: Database, size: u32) -> OnServer {
    OnServer(Arc::new(database.transaction(size).await))
}

/// One test, which passes where there is no server.
macro_rules! on_server {
    ($group:ident::$clause:ident, $kind:ident, $size:literal) => {
        #[tokio::test]
        async fn $clause() {
            if let Some(database) = database().await {
                let server = super::$kind(database, $size).await;
                tower_idempotency::conformance::$group::$clause(&server).await;
            }
        }
    };
}

/// All clauses, on one database.
macro_rules! clauses {
    ($($name:ident: $kind:ident $(and $more:ident)+, $size:literal, $with:expr;)*) => {$(
        mod $name {
            use super::{Database, servers};

            async fn database() -> Option<Database> {
                static URL: tokio::sync::OnceCell<String> = tokio::sync::OnceCell::const_new();
                let server = servers::mariadb()?;
                let url = URL.get_or_init(|| server.database()).await.clone();
                Some($with(Database::at(url)))
            }

            tower_idempotency::__conformance_clauses!($kind, [on_server] $kind, $size);
            $(tower_idempotency::__conformance_clauses!($more, [on_server] $kind, $size);)+
        }
    )*};
}

clauses! {
    lease_at_read_committed: lease and lease_listing and steps, 4, super::read_committed;
    lease_at_repeatable_read: lease and lease_listing and steps, 4, super::repeatable_read;
    lease_at_serializable: lease and lease_listing and steps, 4, super::serializable;
    lease_on_one_connection_without_statement_cache: lease and lease_listing and steps, 1, super::without_cache;
    lease_without_autocommit: lease and lease_listing and steps, 4, super::without_autocommit;
    transaction_at_read_committed: transaction and transaction_listing, 4, super::read_committed;
    transaction_at_repeatable_read: transaction and transaction_listing, 4, super::repeatable_read;
    transaction_at_serializable: transaction and transaction_listing, 4, super::serializable;
    transaction_on_one_connection: transaction and transaction_listing, 1, super::repeatable_read;
    transaction_without_statement_cache: transaction and transaction_listing, 2, super::without_cache;
}

fn read_committed(database: Database) -> Database {
    database.with("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
}

/// As newer versions of MariaDB understand it.
fn repeatable_read(database: Database) -> Database {
    database
        .with("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        .with("SET @ignored = 0 /*M!101108 , SESSION innodb_snapshot_isolation = ON */")
}

fn serializable(database: Database) -> Database {
    database.with("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
}

fn without_autocommit(database: Database) -> Database {
    database.with("SET SESSION autocommit = 0")
}

fn without_cache(mut database: Database) -> Database {
    database.options = database.options.statement_cache_capacity(0);
    database
}
