//! A database per test on the server of the test binary, and short names for what a store is called with.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

#[path = "../store_support/mod.rs"]
mod store_support;

use std::{
    str::FromStr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, Executor, MySql, MySqlConnection, MySqlPool,
    mysql::{MySqlConnectOptions, MySqlDatabaseError, MySqlPoolOptions},
};
pub(crate) use store_support::*;
use tower_idempotency::{
    RecordKey, StoreError, Tx,
    mysql::{LeaseStore, TransactionStore},
    store::{Claim, Reservation, Store},
};

use crate::servers;

/// A database that this test has for itself, and how its sessions are set.
#[derive(Clone)]
pub(crate) struct Database {
    pub(crate) options: MySqlConnectOptions,
    pub(crate) url: String,
    settings: String,
}

impl Database {
    /// None if there is no server on this machine.
    pub(crate) async fn new() -> Option<Self> {
        Some(Self::at(servers::mariadb()?.database().await))
    }

    pub(crate) fn at(url: String) -> Self {
        Self {
            options: MySqlConnectOptions::from_str(&url).unwrap(),
            url,
            settings: String::new(),
        }
    }

    /// The same one, whose sessions begin with this.
    pub(crate) fn with(mut self, setting: &str) -> Self {
        self.settings = format!("; {setting}{}", self.settings);
        self
    }

    /// The same one, whose transactions don't write over what another one has committed since their snapshot: so it is on MariaDB
    /// from 11.6.2 on. `None` if the server can't do that.
    pub(crate) async fn with_isolated_snapshots(self) -> Option<Self> {
        let variable = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'";
        let rows = sqlx::raw_sql(variable).fetch_all(&self.pool(1).await).await;
        if rows.unwrap().is_empty() {
            servers::tell("SKIPPED: the server has no innodb_snapshot_isolation");
            return None;
        }
        let repeatable = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
        let isolated = self.with("SET SESSION innodb_snapshot_isolation = ON");
        Some(isolated.with(repeatable))
    }

    /// Sessions west and east of UTC take turns.
    pub(crate) async fn pool(&self, size: u32) -> MySqlPool {
        let (settings, made) = (self.settings.clone(), AtomicUsize::new(0));
        MySqlPoolOptions::new()
            .max_connections(size)
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let zone = ZONES[made.fetch_add(1, Ordering::Relaxed) % ZONES.len()];
                let sql = format!("SET time_zone = '{zone}'{settings}");
                Box::pin(async move {
                    connection
                        .execute(sqlx::raw_sql(AssertSqlSafe(sql)))
                        .await
                        .map(drop)
                })
            })
            .connect_with(self.options.clone())
            .await
            .unwrap()
    }

    pub(crate) async fn lease(&self, size: u32) -> LeaseStore {
        let store = LeaseStore::new(self.pool(size).await);
        store.migrate().await.unwrap();
        store
    }

    pub(crate) async fn transaction(&self, size: u32) -> TransactionStore {
        let store = TransactionStore::new(self.pool(size).await);
        store.migrate().await.unwrap();
        store
    }

    /// The tables of a small application, and a connection of a stranger, who sees what was committed.
    pub(crate) async fn shop(&self) -> MySqlPool {
        let outside = MySqlPoolOptions::new()
            .max_connections(1)
            .connect_with(MySqlConnectOptions::from_str(&self.url).unwrap())
            .await
            .unwrap();
        sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS charges (amount BIGINT NOT NULL PRIMARY KEY) ENGINE = InnoDB;
             CREATE TABLE IF NOT EXISTS accounts (id INT NOT NULL PRIMARY KEY, balance BIGINT NOT NULL) ENGINE = InnoDB;
             INSERT IGNORE INTO accounts VALUES (1, 0), (2, 0)",
        )
        .execute(&outside)
        .await
        .unwrap();
        outside
    }
}

/// New York's, and the easternmost that MariaDB takes, by their offsets: not every server has the tables of names.
const ZONES: [&str; 2] = ["-05:00", "+13:00"];

pub(crate) const CHARGE: &str = "INSERT INTO charges VALUES (10)";
pub(crate) const CHARGES: &str = "SELECT count(*) FROM charges";

/// One number, read through this pool.
pub(crate) async fn count(pool: &MySqlPool, sql: &'static str) -> i64 {
    count_on(&mut pool.acquire().await.unwrap(), sql).await
}

/// The same, on this connection.
pub(crate) async fn count_on(connection: &mut MySqlConnection, sql: &'static str) -> i64 {
    let sql = AssertSqlSafe(format!("SELECT CAST(({sql}) AS SIGNED)"));
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

pub(crate) fn take(claim: &Claim) -> Tx<MySql> {
    Tx::take(claim.attachments()).unwrap()
}

pub(crate) async fn run(
    connection: &mut MySqlConnection,
    sql: &'static str,
) -> Result<(), sqlx::Error> {
    sqlx::query(sql).execute(connection).await.map(drop)
}

/// The server's number of an error.
pub(crate) fn number(error: &sqlx::Error) -> u16 {
    let error = error.as_database_error().expect("the server's own error");
    error.downcast_ref::<MySqlDatabaseError>().number()
}

/// Lets two transactions deadlock over accounts that each has written to, and tells whether the first one is the victim.
pub(crate) async fn deadlock(one: &mut MySqlConnection, other: &mut MySqlConnection) -> bool {
    const FIRST: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = 1";
    const SECOND: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = 2";
    run(one, FIRST).await.unwrap();
    run(other, SECOND).await.unwrap();
    match tokio::join!(run(one, SECOND), run(other, FIRST)) {
        (Err(error), Ok(())) => {
            assert_eq!(number(&error), 1213);
            true
        }
        (Ok(()), Err(error)) => {
            assert_eq!(number(&error), 1213);
            false
        }
        both => panic!("no deadlock: {both:?}"),
    }
}

/// What is answered once the key isn't in flight any more; a test that waits in vain fails after a minute.
pub(crate) async fn after_flight(store: &dyn Store, key: &RecordKey) -> Reservation {
    let landed = async {
        loop {
            match reserve(store, key).await {
                Reservation::InFlight { .. } => tokio::task::yield_now().await,
                landed => return landed,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), landed)
        .await
        .expect("the key stays in flight")
}

pub(crate) async fn complete(
    store: &dyn Store,
    claim: &Claim,
    body: &'static str,
) -> Result<(), StoreError> {
    store.complete(claim, &response(body), RETENTION).await
}

/// What the store's error was caused by.
pub(crate) fn cause(error: &StoreError) -> String {
    std::error::Error::source(error).unwrap().to_string()
}
