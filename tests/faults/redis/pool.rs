//! The store of an application in the place of a pool, and what its handler charges with.

use std::time::Duration;

use http::Extensions;
use redis::Client;
use tower_idempotency::{
    RedisStore,
    store::{Store, StoreKind},
};

use super::world::{World, prefix};

/// A store that connects when it is first used, within a time of its own.
pub fn connect(url: &str, _size: u32, _limit: Duration) -> RedisStore {
    let client = Client::open(url).expect("a URL");
    RedisStore::new(client).with_prefix(prefix())
}

/// Its one connection is nobody's for any time.
pub async fn all_idle(_: &RedisStore) {}

/// It is.
pub async fn assert_in_order(_: &World, store: &RedisStore) {
    store.ping().await.expect("a connection in order");
}

/// How many the server has, on which there is nobody else.
pub async fn connections(world: &World, _: &RedisStore) -> usize {
    let clients: String = world.get(&["CLIENT", "LIST"]).await;
    let asking = 1;
    clients.lines().count() - asking
}

/// What the handlers of an application charge with.
#[derive(Clone, Debug)]
pub struct Money(World);

impl Money {
    pub fn of(world: &World, _: StoreKind, _: &RedisStore) -> Self {
        Self(world.clone())
    }

    pub async fn take(self, _: &Extensions) -> Self {
        self
    }

    /// Whether it could.
    pub async fn charge(&mut self, account: &str) -> bool {
        self.0.charge(account).await;
        true
    }
}

/// The handler's own command.
pub const CHARGE: &str = "INCR";
