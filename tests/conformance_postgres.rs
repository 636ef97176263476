//! Both Postgres stores keep the contract, whatever the sessions of the pool are like.
#![cfg(all(feature = "postgres", feature = "conformance"))]

mod servers;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use servers::postgres;
use sqlx::{
    AssertSqlSafe, Executor, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{sync::OnceCell, time::Instant};
use tower_idempotency::{
    conformance::Harness,
    postgres::{LeaseStore, TransactionStore},
    store::Store,
};

struct OnServer(Arc<dyn Store>);

#[async_trait]
impl Harness for OnServer {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep_until(Instant::now() + time).await;
    }
}

/// What the pool's transactions are by default.
#[derive(Clone, Copy)]
enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

impl Isolation {
    fn name(self) -> &'static str {
        match self {
            Self::ReadCommitted => "read committed",
            Self::RepeatableRead => "repeatable read",
            Self::Serializable => "serializable",
        }
    }
}

/// One database for all tests of this binary, which run side by side; `None` without a server.
async fn options() -> Option<PgConnectOptions> {
    static DATABASE: OnceCell<Option<String>> = OnceCell::const_new();
    let make = async || match postgres() {
        Some(server) => Some(server.database().await),
        None => None,
    };
    let url = DATABASE.get_or_init(make).await.as_ref()?;
    Some(url.parse().expect("a URL"))
}

/// A pool whose sessions are of two time zones, one after the other.
async fn pool(options: PgConnectOptions, size: u32) -> PgPool {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    PgPoolOptions::new()
        .max_connections(size)
        .after_connect(|connection, _| {
            Box::pin(async move {
                let zones = ["America/New_York", "Pacific/Kiritimati"];
                let zone = zones[CONNECTIONS.fetch_add(1, Ordering::Relaxed) % zones.len()];
                let set = format!("SET TIME ZONE '{zone}'");
                connection.execute(AssertSqlSafe(set)).await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await
        .expect("a pool")
}

async fn isolated(isolation: Isolation, size: u32) -> Option<PgPool> {
    let options = options().await?;
    let options = options.options([("default_transaction_isolation", isolation.name())]);
    Some(pool(options, size).await)
}

async fn lease(isolation: Isolation) -> Option<OnServer> {
    let store = LeaseStore::new(isolated(isolation, 4).await?);
    store.migrate().await.expect("a table");
    Some(OnServer(Arc::new(store)))
}

async fn transaction(isolation: Isolation, size: u32) -> Option<OnServer> {
    let store = TransactionStore::new(isolated(isolation, size).await?);
    store.migrate().await.expect("a table");
    Some(OnServer(Arc::new(store)))
}

/// One test, which passes where there is no server.
macro_rules! test {
    ($group:ident::$clause:ident, $harness:expr) => {
        #[tokio::test]
        async fn $clause() {
            if let Some(harness) = $harness.await {
                tower_idempotency::conformance::$group::$clause(&harness).await;
            }
        }
    };
}

mod lease_store {
    use super::{Isolation::ReadCommitted, lease};

    tower_idempotency::__conformance_clauses!(lease, [test] lease(ReadCommitted));
}

mod lease_store_under_repeatable_read {
    use super::{Isolation::RepeatableRead, lease};

    tower_idempotency::__conformance_clauses!(lease, [test] lease(RepeatableRead));
}

mod lease_store_under_serializable {
    use super::{Isolation::Serializable, lease};

    tower_idempotency::__conformance_clauses!(lease, [test] lease(Serializable));
}

mod transaction_store {
    use super::{Isolation::ReadCommitted, transaction};

    tower_idempotency::__conformance_clauses!(transaction, [test] transaction(ReadCommitted, 4));
}

mod transaction_store_on_one_connection {
    use super::{Isolation::ReadCommitted, transaction};

    tower_idempotency::__conformance_clauses!(transaction, [test] transaction(ReadCommitted, 1));
}

mod transaction_store_under_repeatable_read {
    use super::{Isolation::RepeatableRead, transaction};

    tower_idempotency::__conformance_clauses!(transaction, [test] transaction(RepeatableRead, 4));
}

mod transaction_store_under_serializable {
    use super::{Isolation::Serializable, transaction};

    tower_idempotency::__conformance_clauses!(transaction, [test] transaction(Serializable, 4));
}
