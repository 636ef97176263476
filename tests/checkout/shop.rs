//! The example as a process of its own, and its database through a connection of the test's.

use std::{net::SocketAddr, process::Stdio, time::Duration};

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::Full;
use serde_json::Value;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{interval, timeout},
};

use crate::server::{Answer, Caller, LIMIT, example, listening};

/// A row of its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) customer: String,
    pub(crate) items: Value,
    pub(crate) amount: i64,
}

/// The running example, with an empty database. It is killed when this is dropped.
pub(crate) struct Shop {
    pub(crate) address: SocketAddr,
    directory: TempDir,
    _process: Child,
}

impl Shop {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut process = Command::new(example("checkout"))
            .env("ADDR", "127.0.0.1:0")
            .env("DATABASE_URL", url(&directory))
            .env("HOLD", "1")
            .env_remove("API_ADDR")
            .env_remove("API_URL")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("a process");
        let address = listening(&mut process).await;
        Self {
            address,
            directory,
            _process: process,
        }
    }

    /// All charges, in the order in which they were made.
    pub(crate) async fn charges(&self) -> Vec<Charge> {
        let mut connection = self.connect().await;
        let sql =
            "SELECT idempotency_key, id, customer, items, amount FROM charges ORDER BY number";
        let rows: Vec<(String, String, String, String, i64)> = sqlx::query_as(sql)
            .fetch_all(&mut connection)
            .await
            .expect("rows");
        let rows = rows.into_iter();
        rows.map(|(key, id, customer, items, amount)| Charge {
            key,
            id,
            customer,
            items: serde_json::from_str(&items).expect("JSON"),
            amount,
        })
        .collect()
    }

    /// The only one.
    pub(crate) async fn charge(&self) -> Charge {
        let mut charges = self.charges().await;
        assert_eq!(charges.len(), 1, "{charges:?}");
        charges.remove(0)
    }

    /// How many keys the layer's table knows.
    pub(crate) async fn records(&self) -> i64 {
        let mut connection = self.connect().await;
        let count = sqlx::query_scalar("SELECT count(*) FROM tower_idempotency_transactions");
        count.fetch_one(&mut connection).await.expect("a count")
    }

    pub(crate) async fn execute(&self, sql: &'static str) {
        let mut connection = self.connect().await;
        let done = sqlx::raw_sql(sql).execute(&mut connection).await;
        done.expect("a statement that works");
    }

    async fn connect(&self) -> SqliteConnection {
        let connection = SqliteConnection::connect(&url(&self.directory)).await;
        connection.expect("a connection")
    }
}

fn url(directory: &TempDir) -> String {
    format!("sqlite://{}/checkout.db", directory.path().display())
}

/// The gate that charges can be held at.
pub(crate) struct Gate(Caller);

impl Gate {
    /// Of the API at this address.
    pub(crate) async fn close(api: SocketAddr) -> Self {
        let gate = Self(Caller::new(api));
        let answer = gate.send(Method::PUT).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
        gate
    }

    pub(crate) async fn open(&self) {
        let answer = self.send(Method::DELETE).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
    }

    /// Waits until a charge is held.
    pub(crate) async fn holds_one(&self) {
        let mut asks = interval(Duration::from_millis(10));
        let held = async {
            while self.send(Method::GET).await.body != "1" {
                asks.tick().await;
            }
        };
        timeout(LIMIT, held).await.expect("a charge at the gate");
    }

    async fn send(&self, method: Method) -> Answer {
        let request = self
            .0
            .request(method, "/hold")
            .body(Full::<Bytes>::default());
        self.0.send(request.expect("a request")).await
    }
}
