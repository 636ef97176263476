//! From the URL of a Redis server or cluster to a store.

use std::time::Duration;

use redis::{Client, RedisError, cluster::ClusterClient};
use tokio::time::timeout;
use tower_idempotency::RedisStore;

use crate::{
    arguments::Arguments,
    failure::Failure,
    stores::{LIMIT, Opened},
};

/// The store of this URL, after a look at its server.
pub(crate) async fn open(url: &str, arguments: &Arguments) -> Result<Opened, Failure> {
    if arguments.table.is_some() || arguments.transaction {
        return Err(Failure::usage(
            "Redis has no tables (see --prefix) and no transaction store",
        ));
    }
    let mut store = store(url)?;
    if let Some(prefix) = &arguments.prefix {
        if prefix.contains(['{', '}']) {
            return Err(Failure::usage("a prefix has no braces"));
        }
        store = store.with_prefix(prefix);
    }
    if arguments.allow_eviction {
        store = store.allow_eviction();
    }
    let checked = timeout(LIMIT, store.check()).await;
    checked.map_err(|_elapsed| Failure::silent(LIMIT))??;
    Ok(Opened::listing(store))
}

fn store(url: &str) -> Result<RedisStore, Failure> {
    let Some((scheme, nodes)) = url.split_once("-cluster://") else {
        return Ok(RedisStore::new(Client::open(url).map_err(unusable)?));
    };
    // The same user and password for all nodes, before the first.
    let (user, nodes) = match nodes.rsplit_once('@') {
        Some((user, nodes)) => (format!("{user}@"), nodes),
        None => (String::new(), nodes),
    };
    let nodes = nodes
        .split(',')
        .map(|node| format!("{scheme}://{user}{node}"));
    let client = ClusterClient::builder(nodes)
        .connection_timeout(ANSWER)
        .response_timeout(ANSWER);
    Ok(RedisStore::cluster(client.build().map_err(unusable)?))
}

/// The driver's own words name no part of the URL, except for a scheme that it was built without.
fn unusable(error: RedisError) -> Failure {
    Failure::usage(format_args!("the store's URL can't be used: {error}"))
}

/// How long a node of a cluster may be silent.
const ANSWER: Duration = Duration::from_secs(5);
