//! That the store keeps the contract, and what the example promises besides, on a server that the tests start.

mod bank;
mod case;
mod commits;
mod contract;
mod faults;
mod lost;
mod misuse;
mod rollbacks;
#[path = "../../tests/servers/mod.rs"]
mod servers;
#[path = "../../tests/support/mod.rs"]
mod support;
mod transfers;

use std::time::Duration;

use tokio_postgres::{Client, Config, NoTls};

use crate::{connections::Connections, store::TransactionStore};

/// A new database.
struct Database {
    url: String,
}

impl Database {
    /// None if there is no Postgres on this machine.
    async fn new() -> Option<Self> {
        let url = servers::postgres()?.database().await;
        Some(Self { url })
    }

    fn config(&self) -> Config {
        self.url.parse().expect("a URL")
    }

    async fn store(&self, connections: usize) -> TransactionStore {
        let connections = Connections::new(self.config(), connections);
        TransactionStore::new(connections).await.expect("a table")
    }

    /// A connection of the test's own.
    async fn connect(&self) -> Client {
        let (client, connection) = self.config().connect(NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client
    }

    async fn number(&self, query: &str) -> i64 {
        let row = self.connect().await.query_one(query, &[]).await;
        row.expect("a row").get(0)
    }
}

/// Waits until this is so.
async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    waited.expect(what);
}
