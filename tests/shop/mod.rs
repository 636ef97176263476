//! A server that charges cards, over HTTP/1.1 and HTTP/2: behind an idempotency layer, or without one.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses some of it"
)]

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Form, Json, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::Response,
    routing::post,
};
use http_body::Frame;
use serde::{Deserialize, Serialize};
use sqlx::{
    Sqlite, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::watch, task::AbortHandle, time::timeout};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Outcome, ScopeBy, Tx, sqlite::TransactionStore,
};

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
    /// What is answered instead of the next charges.
    refusals: Mutex<VecDeque<StatusCode>>,
    /// How many handlers are yet to fail, once they have charged.
    failures: AtomicUsize,
    /// How many answers are yet to break off.
    breaks: AtomicUsize,
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
        Self::start(async |pool| {
            let store = TransactionStore::new(pool);
            store.migrate().await.expect("a migrated store");
            Some(IdempotencyLayer::new(store, ScopeBy::single_tenant()))
        })
        .await
    }

    /// Behind a layer with a lease store.
    pub async fn leased() -> Self {
        Self::start(async |_| {
            let store = MemoryStore::new();
            Some(IdempotencyLayer::new(store, ScopeBy::single_tenant()))
        })
        .await
    }

    /// The same server without the layer.
    pub async fn unprotected() -> Self {
        Self::start(async |_| None).await
    }

    async fn start(layer: impl AsyncFnOnce(SqlitePool) -> Option<IdempotencyLayer>) -> Self {
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
            refusals: Mutex::default(),
            failures: AtomicUsize::new(0),
            breaks: AtomicUsize::new(0),
        });
        let mut app = Router::new()
            .route("/v1/charges", post(charge))
            .route("/weigh", post(weigh));
        if let Some(layer) = layer(pool).await {
            let seen = Arc::clone(&outcomes);
            let layer = layer.require_key().with_observer(move |observation| {
                seen.send_modify(|outcomes| outcomes.push(observation.outcome()));
            });
            app = app.route_layer(layer);
        }
        let breaking = middleware::from_fn_with_state(Arc::clone(&state), break_off);
        let app = app.layer(breaking).with_state(Arc::clone(&state));
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

    /// Another one of the next orders is refused so, inside of the layer, and nothing is charged.
    pub fn refuse(&self, status: StatusCode) {
        self.state.refusals().push_back(status);
    }

    /// Each of the next handlers charges, and fails.
    pub fn fail(&self, handlers: usize) {
        self.state.failures.store(handlers, Ordering::SeqCst);
    }

    /// The bodies of the next answers fail at once: over HTTP/2 the stream is reset.
    pub fn break_off(&self, answers: usize) {
        self.state.breaks.store(answers, Ordering::SeqCst);
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
) -> Result<Json<Charge>, StatusCode> {
    let refusal = state.refusals().pop_front();
    if let Some(status) = refusal {
        return Err(status);
    }
    let charge = Charge {
        id: state.charge(tx, order.amount).await,
        object: "charge",
        amount: order.amount,
        currency: order.currency,
    };
    if counted_down(&state.failures) {
        return Err(StatusCode::INTERNAL_SERVER_ERROR);
    }
    Ok(Json(charge))
}

/// Charges by the size of what is sent, whatever that is.
async fn weigh(State(state): State<Arc<Charging>>, tx: Option<Tx<Sqlite>>, body: Bytes) -> String {
    let size = i64::try_from(body.len()).expect("a body in memory");
    state.charge(tx, size).await
}

impl Charging {
    fn refusals(&self) -> MutexGuard<'_, VecDeque<StatusCode>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id of the charge.
    async fn charge(&self, tx: Option<Tx<Sqlite>>, amount: i64) -> String {
        self.runs.send_modify(|runs| *runs += 1);
        let mut is_open = self.is_open.subscribe();
        drop(is_open.wait_for(|open| *open).await.expect("a gate"));
        let id = match tx {
            Some(mut tx) => insert(&mut tx, amount).await,
            None => {
                let mut connection = self.pool.acquire().await.expect("a connection");
                insert(&mut connection, amount).await
            }
        };
        format!("ch_{id}")
    }
}

async fn insert(connection: &mut SqliteConnection, amount: i64) -> i64 {
    let insert = sqlx::query("INSERT INTO charges (amount) VALUES (?)").bind(amount);
    let inserted = insert.execute(connection).await;
    inserted.expect("a row").last_insert_rowid()
}

async fn break_off(
    State(state): State<Arc<Charging>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let response = next.run(request).await;
    if counted_down(&state.breaks) {
        return response.map(|_| Body::new(Broken));
    }
    response
}

/// Whether there was one left.
fn counted_down(counter: &AtomicUsize) -> bool {
    let less = |count: usize| count.checked_sub(1);
    let counted = counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    counted.is_ok()
}

/// A body that fails.
struct Broken;

impl http_body::Body for Broken {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into())))
    }
}
