//! A database per test on the server of the test binary, and short names for what a store is called with.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

#[path = "../store_support/mod.rs"]
mod store_support;

use std::time::Duration;

use sqlx::{
    AssertSqlSafe, PgPool, Postgres,
    postgres::{PgConnectOptions, PgPoolOptions},
};
pub(crate) use store_support::*;
use tower_idempotency::{
    Tx,
    postgres::{LeaseStore, TransactionStore},
    store::Claim,
};

use crate::servers;

/// A database with the tables of both stores and of a small application in it.
pub(crate) struct Database(pub(crate) String);

impl Database {
    /// On the server that the tests of this binary share. `None` without a server: the test passes then.
    pub(crate) async fn new() -> Option<Self> {
        Some(Self::on(servers::postgres()?).await)
    }

    pub(crate) async fn on(server: &servers::Postgres) -> Self {
        let database = Self(server.database().await);
        let pool = database.pool(1).await;
        LeaseStore::new(pool.clone()).migrate().await.unwrap();
        TransactionStore::new(pool.clone()).migrate().await.unwrap();
        sqlx::raw_sql(
            "CREATE TABLE accounts (id BIGINT PRIMARY KEY);
             CREATE TABLE charges (
                 amount  BIGINT NOT NULL UNIQUE CHECK (amount > 0),
                 account BIGINT REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED
             );",
        )
        .execute(&pool)
        .await
        .unwrap();
        pool.close().await;
        database
    }

    pub(crate) fn options(&self) -> PgConnectOptions {
        self.0.parse().unwrap()
    }

    pub(crate) async fn pool(&self, size: u32) -> PgPool {
        pool(self.options(), size).await
    }

    /// A pool whose sessions have this setting.
    pub(crate) async fn pool_with(&self, size: u32, setting: (&str, &str)) -> PgPool {
        pool(self.options().options([setting]), size).await
    }

    pub(crate) async fn leases(&self, size: u32) -> LeaseStore {
        LeaseStore::new(self.pool(size).await)
    }

    pub(crate) async fn transactions(&self, size: u32) -> TransactionStore {
        TransactionStore::new(self.pool(size).await)
    }
}

pub(crate) async fn pool(options: PgConnectOptions, size: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(size)
        .acquire_timeout(Duration::from_secs(30))
        .test_before_acquire(false)
        .connect_with(options)
        .await
        .unwrap()
}

/// One number, read through this pool.
pub(crate) async fn count(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

pub(crate) const CHARGES: &str = "SELECT count(*) FROM charges";

/// The advisory locks that are held in this database.
pub(crate) const LOCKS: &str = "SELECT count(*) FROM pg_locks JOIN pg_database ON oid = database
    WHERE locktype = 'advisory' AND datname = current_database()";

pub(crate) fn take(claim: &Claim) -> Tx<Postgres> {
    Tx::take(claim.attachments()).unwrap()
}

pub(crate) async fn run(tx: &mut Tx<Postgres>, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(sql))
        .execute(&mut **tx)
        .await
        .map(drop)
}

pub(crate) async fn charge(tx: &mut Tx<Postgres>, amount: i64) {
    sqlx::query("INSERT INTO charges (amount) VALUES ($1)")
        .bind(amount)
        .execute(&mut **tx)
        .await
        .unwrap();
}

/// The SQLSTATE.
pub(crate) fn state(error: &sqlx::Error) -> String {
    let error = error.as_database_error().unwrap();
    error.code().unwrap().into_owned()
}
