//! Both MySQL stores keep the contract, whatever the isolation and the time zone of the pool's sessions.
#![cfg(all(unix, feature = "mysql", feature = "conformance"))]

mod mysql_support;
mod servers;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use mysql_support::Database;
use tower_idempotency::{conformance::Harness, store::Store};

struct OnServer(Arc<dyn Store>);

#[async_trait]
impl Harness for OnServer {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0)
    }

    /// The server's clock is the machine's.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

async fn lease(isolation: &'static str, size: u32) -> Option<OnServer> {
    let database = Database::isolated(isolation).await?;
    Some(OnServer(Arc::new(database.lease(size).await)))
}

async fn transaction(isolation: &'static str, size: u32) -> Option<OnServer> {
    let database = Database::isolated(isolation).await?;
    Some(OnServer(Arc::new(database.transaction(size).await)))
}

/// One test, which passes where there is no server.
macro_rules! on_server {
    ($group:ident::$clause:ident, $store:expr) => {
        #[tokio::test]
        async fn $clause() {
            if let Some(server) = $store.await {
                tower_idempotency::conformance::$group::$clause(&server).await;
            }
        }
    };
}

macro_rules! clauses {
    ($($name:ident: $kind:ident($isolation:literal, $size:literal);)*) => {$(
        mod $name {
            tower_idempotency::__conformance_clauses!($kind, [on_server] super::$kind($isolation, $size));
        }
    )*};
}

clauses! {
    lease_at_read_committed: lease("READ COMMITTED", 4);
    lease_at_repeatable_read: lease("REPEATABLE READ", 4);
    lease_at_serializable: lease("SERIALIZABLE", 4);
    lease_on_one_connection: lease("REPEATABLE READ", 1);
    transaction_at_read_committed: transaction("READ COMMITTED", 4);
    transaction_at_repeatable_read: transaction("REPEATABLE READ", 4);
    transaction_at_serializable: transaction("SERIALIZABLE", 4);
    transaction_on_one_connection: transaction("REPEATABLE READ", 1);
}
