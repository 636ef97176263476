//! A table, and two ways to it.

use std::{future::Future, time::Duration};

use sqlx::{Connection as _, Error};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::{Connection, Options, Pool, database};
use crate::servers::Proxy;

/// Far longer than anything takes.
pub const LIMIT: Duration = Duration::from_secs(60);

pub struct World {
    pub proxy: Proxy,
    /// One connection through the proxy.
    pub pool: Pool,
    /// Past the proxy.
    pub direct: Connection,
}

impl World {
    /// None without such a server.
    pub async fn new() -> Option<Self> {
        let url = database().await?;
        let mut direct = Connection::connect(&url).await.expect("a connection");
        let table = "CREATE TABLE t (n int PRIMARY KEY)";
        sqlx::query(table)
            .execute(&mut direct)
            .await
            .expect("a table");
        let proxy = Proxy::start(&url);
        let pool = Options::new()
            .max_connections(1)
            .test_before_acquire(false)
            .acquire_timeout(LIMIT)
            .connect(proxy.url())
            .await
            .expect("a pool");
        Some(Self {
            proxy,
            pool,
            direct,
        })
    }

    /// In a transaction.
    pub async fn insert(&self, sql: &'static str) -> Result<(), Error> {
        insert(self.pool.clone(), sql).await
    }

    /// What was committed.
    pub async fn rows(&mut self) -> Vec<i32> {
        let rows = sqlx::query_scalar("SELECT n FROM t ORDER BY n");
        rows.fetch_all(&mut self.direct).await.expect("rows")
    }

    /// Whether a row's lock is to be had at once.
    pub async fn is_locked(&mut self) -> bool {
        let lock = sqlx::query("SELECT n FROM t WHERE n = 0 FOR UPDATE NOWAIT");
        lock.fetch_all(&mut self.direct).await.is_err()
    }

    pub async fn unlocked(&mut self) {
        let start = Instant::now();
        let mut pause = interval(Duration::from_millis(5));
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.is_locked().await {
            assert!(start.elapsed() < LIMIT, "the row stays locked");
            pause.tick().await;
        }
    }
}

pub async fn insert(pool: Pool, sql: &'static str) -> Result<(), Error> {
    let mut tx = pool.begin().await?;
    sqlx::query(sql).execute(&mut *tx).await?;
    tx.commit().await
}

/// Its end, which must come.
pub async fn end<T>(future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.expect("an end")
}

/// Whether the connection broke, and not the statement.
pub fn broken(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::Io(_)))
}
