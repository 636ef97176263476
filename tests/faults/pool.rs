//! The pool of an application over a SQL database, and what its handler charges with.

use std::time::Duration;

use http::Extensions;
use sqlx::{AssertSqlSafe, Executor};
use tower_idempotency::{Tx, store::StoreKind};

use super::{
    Backend, Pool, PoolOptions,
    world::{World, new_account},
};
use crate::network::until;

/// A pool whose connections are made when they are needed, within this time.
pub fn connect(url: &str, size: u32, limit: Duration) -> Pool {
    PoolOptions::new()
        .max_connections(size)
        .acquire_timeout(limit)
        .test_before_acquire(false)
        .connect_lazy(url)
        .expect("a URL")
}

/// Waits until all connections of a pool are back.
pub async fn all_idle(pool: &Pool) {
    until(|| async { (pool.num_idle() == pool.size() as usize).then_some(()) }).await;
}

/// All connections of a pool come back, and none is in a transaction.
pub async fn assert_in_order(world: &World, pool: &Pool) {
    let probe = new_account();
    let size = pool.options().get_max_connections();
    let mut all = until(|| async {
        let mut all = Vec::new();
        for _ in 0..size {
            all.push(pool.acquire().await.ok()?);
        }
        Some(all)
    })
    .await;
    for connection in &mut all {
        let inserted = connection.execute(AssertSqlSafe(charge_of(&probe))).await;
        inserted.expect("a connection in order");
    }
    assert_eq!(world.charges(&probe).await, i64::from(size));
}

/// How many there are.
pub async fn connections(_: &World, pool: &Pool) -> usize {
    pool.size() as usize
}

/// What the handlers of an application charge with.
#[derive(Clone, Debug)]
pub struct Money {
    kind: StoreKind,
    direct: Pool,
    /// The store's pool.
    own: Pool,
}

/// What one run of a handler charges with.
#[derive(Debug)]
pub enum Purse {
    InTransaction(Tx<Backend>),
    Elsewhere(Pool),
}

impl Money {
    pub fn of(world: &World, kind: StoreKind, own: &Pool) -> Self {
        Self {
            kind,
            direct: world.direct.clone(),
            own: own.clone(),
        }
    }

    pub async fn take(self, request: &Extensions) -> Purse {
        if self.kind == StoreKind::Transaction {
            return Purse::InTransaction(Tx::take(request).expect("a transaction"));
        }
        // The store's connection is to be back, or its next call would open a second one.
        until(|| async { (self.own.num_idle() > 0).then_some(()) }).await;
        Purse::Elsewhere(self.direct)
    }
}

impl Purse {
    /// Whether it could.
    pub async fn charge(&mut self, account: &str) -> bool {
        let charge = AssertSqlSafe(charge_of(account));
        let charged = match self {
            Self::InTransaction(tx) => tx.execute(charge).await,
            Self::Elsewhere(direct) => direct.execute(charge).await,
        };
        charged.is_ok()
    }
}

/// The handler's own statement.
pub const CHARGE: &str = "INSERT INTO charges";

pub fn charge_of(account: &str) -> String {
    format!("{CHARGE} (account) VALUES ('{account}')")
}
