//! The Redis store keeps the contract: on a server and a cluster, in both protocols, with replicas, and where scripts are forgotten.
#![cfg(all(unix, feature = "redis", feature = "conformance"))]

mod servers;
mod store_support;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use redis::{Client, cluster::ClusterClient};
use servers::{Redis, RedisCluster, redis, valkey};
use store_support::until;
use tokio::time::Instant;
use tower_idempotency::{
    RedisStore,
    conformance::{Harness, ListingHarness},
    store::{ListRecords, Store},
};

struct OnServer {
    store: Arc<RedisStore>,
    forgetful: Option<&'static Redis>,
}

#[async_trait]
impl Harness for OnServer {
    fn store(&self) -> Arc<dyn Store> {
        if let Some(server) = self.forgetful {
            let flushed = server.run::<()>(&["SCRIPT", "FLUSH"]);
            flushed.expect("scripts that are forgotten");
        }
        Arc::<RedisStore>::clone(&self.store)
    }

    async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        until(|| async { Instant::now() >= end }).await;
    }
}

impl ListingHarness for OnServer {
    fn listing(&self) -> Arc<dyn ListRecords> {
        Arc::<RedisStore>::clone(&self.store)
    }

    fn may_repeat(&self) -> bool {
        true
    }
}

fn harness(store: RedisStore) -> Option<OnServer> {
    Some(OnServer {
        store: Arc::new(store),
        forgetful: None,
    })
}

fn store_at(url: &str) -> RedisStore {
    RedisStore::new(Client::open(url).expect("a client"))
}

async fn alone() -> Option<OnServer> {
    harness(store_at(redis()?.url()))
}

async fn in_the_third_protocol() -> Option<OnServer> {
    let url = format!("{}/?protocol=resp3", redis()?.url());
    harness(store_at(&url))
}

async fn on_valkey() -> Option<OnServer> {
    harness(store_at(valkey()?.url()))
}

async fn forgetful() -> Option<OnServer> {
    static SERVER: OnceLock<Option<Redis>> = OnceLock::new();
    let server = SERVER.get_or_init(Redis::start).as_ref()?;
    Some(OnServer {
        forgetful: Some(server),
        ..harness(store_at(server.url()))?
    })
}

async fn replicated() -> Option<OnServer> {
    static PAIR: OnceLock<Option<(Redis, Redis)>> = OnceLock::new();
    let pair = PAIR.get_or_init(|| {
        let (master, replica) = (Redis::start()?, Redis::start()?);
        replica.follow(&master);
        Some((master, replica))
    });
    let (master, _replica) = pair.as_ref()?;
    harness(store_at(master.url()).with_replicas(1, Duration::from_secs(10)))
}

async fn clustered() -> Option<OnServer> {
    static CLUSTER: OnceLock<Option<RedisCluster>> = OnceLock::new();
    let cluster = CLUSTER.get_or_init(RedisCluster::start).as_ref()?;
    let client = ClusterClient::new(cluster.urls()).expect("a client");
    harness(RedisStore::cluster(client))
}

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

mod on_a_server {
    tower_idempotency::__conformance_clauses!(lease, [test] super::alone());
    tower_idempotency::__conformance_clauses!(steps, [test] super::alone());
    tower_idempotency::__conformance_clauses!(lease_listing, [test] super::alone());
}

mod in_the_third_protocol {
    tower_idempotency::__conformance_clauses!(lease, [test] super::in_the_third_protocol());
    tower_idempotency::__conformance_clauses!(steps, [test] super::in_the_third_protocol());
    tower_idempotency::__conformance_clauses!(lease_listing, [test] super::in_the_third_protocol());
}

mod on_valkey {
    tower_idempotency::__conformance_clauses!(lease, [test] super::on_valkey());
    tower_idempotency::__conformance_clauses!(steps, [test] super::on_valkey());
    tower_idempotency::__conformance_clauses!(lease_listing, [test] super::on_valkey());
}

mod on_a_server_that_forgets_scripts {
    tower_idempotency::__conformance_clauses!(lease, [test] super::forgetful());
    tower_idempotency::__conformance_clauses!(steps, [test] super::forgetful());
}

mod on_a_server_with_a_replica {
    tower_idempotency::__conformance_clauses!(lease, [test] super::replicated());
    tower_idempotency::__conformance_clauses!(steps, [test] super::replicated());
}

mod on_a_cluster {
    tower_idempotency::__conformance_clauses!(lease, [test] super::clustered());
    tower_idempotency::__conformance_clauses!(steps, [test] super::clustered());
    tower_idempotency::__conformance_clauses!(lease_listing, [test] super::clustered());
}
