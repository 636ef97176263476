//! Both Postgres stores keep the contract, whatever the sessions of the pool are like.
#![cfg(all(unix, feature = "postgres", feature = "conformance"))]

mod servers;
mod store_support;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use servers::{PgBouncer, postgres};
use sqlx::{
    AssertSqlSafe, Executor, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use store_support::until;
use tokio::{sync::OnceCell, task::JoinSet, time::Instant};
use tower_idempotency::{
    conformance::{Harness, ListingHarness},
    postgres::{LeaseStore, TransactionStore},
    store::{ListRecords, Store},
};

struct OnServer(Arc<dyn ListRecords>);

#[async_trait]
impl Harness for OnServer {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<dyn ListRecords>::clone(&self.0)
    }

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
async fn database() -> Option<&'static str> {
    static DATABASE: OnceCell<Option<String>> = OnceCell::const_new();
    let make = async || match postgres() {
        Some(server) => Some(server.database().await),
        None => None,
    };
    DATABASE.get_or_init(make).await.as_deref()
}

async fn options() -> Option<PgConnectOptions> {
    Some(database().await?.parse().expect("a URL"))
}

/// The same database through a transaction pooler.
async fn pooled(size: u32) -> Option<PgPool> {
    static BOUNCER: OnceLock<Option<PgBouncer>> = OnceLock::new();
    let (server, database) = (postgres()?, database().await?);
    let bouncer = BOUNCER.get_or_init(|| PgBouncer::start(server, 30));
    let url = bouncer.as_ref()?.through(database);
    let options: PgConnectOptions = url.parse().expect("a URL");
    let pool = PgPoolOptions::new().max_connections(size);
    let pool = pool.connect_with(options.statement_cache_capacity(0));
    Some(pool.await.expect("a pool"))
}

/// Without the statement cache, and nothing in between.
async fn uncached(size: u32) -> Option<PgPool> {
    Some(pool(options().await?.statement_cache_capacity(0), size).await)
}

/// A pool whose sessions are of two time zones, one after the other.
async fn pool(options: PgConnectOptions, size: u32) -> PgPool {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    PgPoolOptions::new()
        .max_connections(size)
        .after_connect(|connection, _| {
            Box::pin(async move {
                let zones = ["America/New_York", "Pacific/Kiritimati"];
                let turn = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
                let zone = zones.iter().cycle().nth(turn % 2).expect("a zone");
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

async fn lease(pool: impl Future<Output = Option<PgPool>>) -> Option<OnServer> {
    let store = LeaseStore::new(pool.await?);
    store.migrate().await.expect("a table");
    Some(OnServer(Arc::new(store)))
}

async fn transaction(pool: impl Future<Output = Option<PgPool>>) -> Option<OnServer> {
    let store = TransactionStore::new(pool.await?);
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
    use super::{Isolation::ReadCommitted, isolated, lease};

    tower_idempotency::__conformance_clauses!(lease_listing, [test] lease(isolated(ReadCommitted, 4)));
    tower_idempotency::__conformance_clauses!(lease, [test] lease(isolated(ReadCommitted, 4)));
    tower_idempotency::__conformance_clauses!(steps, [test] lease(isolated(ReadCommitted, 4)));
}

mod transaction_store {
    use super::{Isolation::ReadCommitted, isolated, transaction};

    tower_idempotency::__conformance_clauses!(transaction_listing, [test] transaction(isolated(ReadCommitted, 4)));
    tower_idempotency::__conformance_clauses!(transaction, [test] transaction(isolated(ReadCommitted, 4)));
}

mod transaction_store_on_one_connection {
    use super::{Isolation::ReadCommitted, isolated, transaction};

    tower_idempotency::__conformance_clauses!(transaction, [test] transaction(isolated(ReadCommitted, 1)));
}

/// All clauses of these kinds at once, on one store.
macro_rules! test_all {
    ($($kind:ident)+, $harness:expr) => {
        if let Some(OnServer(store)) = $harness.await {
            let mut checks = JoinSet::new();
            $(tower_idempotency::__conformance_clauses!($kind, [spawn](checks, store));)+
            checks.join_all().await;
        }
    };
}

macro_rules! spawn {
    ($group:ident::$clause:ident, ($checks:ident, $store:ident)) => {
        let harness = OnServer(Arc::clone(&$store));
        $checks
            .spawn(async move { tower_idempotency::conformance::$group::$clause(&harness).await });
    };
}

#[tokio::test]
async fn the_lease_store_keeps_the_contract_under_repeatable_read() {
    test_all!(
        lease lease_listing steps,
        lease(isolated(Isolation::RepeatableRead, 4))
    );
}

#[tokio::test]
async fn the_lease_store_keeps_the_contract_under_serializable() {
    test_all!(
        lease lease_listing steps,
        lease(isolated(Isolation::Serializable, 4))
    );
}

#[tokio::test]
async fn the_lease_store_keeps_the_contract_without_a_statement_cache() {
    test_all!(lease lease_listing steps, lease(uncached(4)));
}

#[tokio::test]
async fn the_lease_store_keeps_the_contract_through_a_transaction_pooler() {
    test_all!(lease lease_listing steps, lease(pooled(4)));
}

/// More connections here: some clauses hold several transactions, and all of them run at once.
#[tokio::test]
async fn the_transaction_store_keeps_the_contract_under_repeatable_read() {
    let pool = isolated(Isolation::RepeatableRead, 30);
    test_all!(transaction transaction_listing, transaction(pool));
}

#[tokio::test]
async fn the_transaction_store_keeps_the_contract_under_serializable() {
    let pool = isolated(Isolation::Serializable, 30);
    test_all!(transaction transaction_listing, transaction(pool));
}

#[tokio::test]
async fn the_transaction_store_keeps_the_contract_without_a_statement_cache() {
    test_all!(transaction transaction_listing, transaction(uncached(30)));
}

#[tokio::test]
async fn the_transaction_store_keeps_the_contract_through_a_transaction_pooler() {
    test_all!(transaction transaction_listing, transaction(pooled(30)));
}
