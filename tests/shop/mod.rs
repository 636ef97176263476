//! A server that charges cards, over HTTP/1.1 and HTTP/2: behind an idempotency layer, or without one.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses some of it"
)]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Form, Json, Router, extract::State, http::StatusCode, routing::post};
use serde::{Deserialize, Serialize};
use sqlx::{
    Sqlite, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::watch, task::AbortHandle, time::timeout};
use tower_idempotency::{IdempotencyLayer, Outcome, ScopeBy, Tx, sqlite::TransactionStore};

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// The server and its database. Both end when it is dropped.
#[derive(Debug)]
pub struct Shop {
    pub address: SocketAddr,
    /// On connections of its own.
    reader: SqlitePool,
    state: Arc<Charging>,
    outcomes: Arc<watch::Sender<Vec<Outcome>>>,
    serving: AbortHandle,
    directory: TempDir,
}

/// What the handler works with.
#[derive(Debug)]
struct Charging {
    pool: SqlitePool,
    runs: watch::Sender<usize>,
    is_open: watch::Sender<bool>,
}

#[derive(Debug, Deserialize)]
struct Order {
    amount: i64,
    currency: String,
}

#[derive(Debug, Serialize)]
struct Charge {
    id: String,
    object: &'static str,
    amount: i64,
    currency: String,
}

impl Shop {
    /// Behind a layer with a transaction store.
    pub async fn protected() -> Self {
        Self::start(true).await
    }

    /// The same server without the layer.
    pub async fn unprotected() -> Self {
        Self::start(false).await
    }

    async fn start(protects: bool) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let pool = pool(&directory).await;
        sqlx::raw_sql(
            "CREATE TABLE charges (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL) STRICT",
        )
        .execute(&pool)
        .await
        .expect("a table");
        let outcomes = Arc::new(watch::Sender::new(Vec::new()));
        let state = Arc::new(Charging {
            pool: pool.clone(),
            runs: watch::Sender::new(0),
            is_open: watch::Sender::new(true),
        });
        let mut app = Router::new().route("/v1/charges", post(charge));
        if protects {
            let store = TransactionStore::new(pool);
            store.migrate().await.expect("a migrated store");
            let seen = Arc::clone(&outcomes);
            app = app.route_layer(
                IdempotencyLayer::new(store, ScopeBy::single_tenant())
                    .require_key()
                    .with_observer(move |observation| {
                        seen.send_modify(|outcomes| outcomes.push(observation.outcome()));
                    }),
            );
        }
        let app = app.with_state(Arc::clone(&state));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            reader: self::pool(&directory).await,
            state,
            outcomes,
            serving: serving.abort_handle(),
            directory,
        }
    }

    /// How many charges there are, as others see it.
    pub async fn charges(&self) -> i64 {
        let charges = sqlx::query_scalar("SELECT count(*) FROM charges");
        charges.fetch_one(&self.reader).await.expect("a number")
    }

    /// Waits until there are so many.
    pub async fn charged(&self, charges: i64) {
        let enough = async {
            while self.charges().await < charges {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, enough).await.expect("in time");
    }

    /// From here on handlers wait before they charge.
    pub fn close(&self) {
        self.state.is_open.send_replace(false);
    }

    pub fn open(&self) {
        self.state.is_open.send_replace(true);
    }

    /// How often the handler began.
    pub fn runs(&self) -> usize {
        *self.state.runs.borrow()
    }

    /// Waits until it began so often.
    pub async fn ran(&self, times: usize) {
        let mut runs = self.state.runs.subscribe();
        let reached = timeout(LIMIT, runs.wait_for(|runs| *runs >= times)).await;
        drop(reached.expect("in time").expect("a server"));
    }

    /// What became of the keyed requests, in the order of their ends.
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.outcomes.borrow().clone()
    }

    /// Waits until this became of one.
    pub async fn saw(&self, outcome: Outcome) {
        let mut outcomes = self.outcomes.subscribe();
        let seen = timeout(LIMIT, outcomes.wait_for(|seen| seen.contains(&outcome))).await;
        drop(seen.expect("in time").expect("a server"));
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn pool(directory: &TempDir) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(directory.path().join("shop.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    SqlitePool::connect_with(options).await.expect("a pool")
}

async fn charge(
    State(state): State<Arc<Charging>>,
    tx: Option<Tx<Sqlite>>,
    Form(order): Form<Order>,
) -> (StatusCode, Json<Charge>) {
    state.runs.send_modify(|runs| *runs += 1);
    let mut is_open = state.is_open.subscribe();
    drop(is_open.wait_for(|open| *open).await.expect("a gate"));
    let id = match tx {
        Some(mut tx) => insert(&mut tx, order.amount).await,
        None => {
            let mut connection = state.pool.acquire().await.expect("a connection");
            insert(&mut connection, order.amount).await
        }
    };
    let charge = Charge {
        id: format!("ch_{id}"),
        object: "charge",
        amount: order.amount,
        currency: order.currency,
    };
    (StatusCode::OK, Json(charge))
}

async fn insert(connection: &mut SqliteConnection, amount: i64) -> i64 {
    let insert = sqlx::query("INSERT INTO charges (amount) VALUES (?)").bind(amount);
    let inserted = insert.execute(connection).await;
    inserted.expect("a row").last_insert_rowid()
}
