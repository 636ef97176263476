//! A receiver of webhooks: each event takes effect once, however often and by however many connections it is delivered.
//!
//! Run with `cargo run --example webhooks --features axum,sqlite` (`ADDR` is 127.0.0.1:3000)
//!
//! ```sh
//! event='{"id":"evt_1","type":"payment","account":"alice","amount":100}' now=$(date +%s)
//! signature=$(printf %s "$now.$event" | openssl dgst -sha256 -hmac whsec_of_acme -r | cut -d ' ' -f 1)
//! curl -i localhost:3000/webhooks -H 'Webhook-Sender: acme' -H "Webhook-Signature: t=$now,v1=$signature" \
//!     -H 'Content-Type: application/json' -d "$event"
//! # HTTP/1.1 503 Service Unavailable
//! # no such account yet
//! #
//! # Nothing of it stays, and the sender will deliver it again. Meanwhile comes the event that should have been first:
//! # '{"id":"evt_0","type":"account","account":"alice"}', signed in the same way: HTTP/1.1 200 OK. Then evt_1 again:
//! # HTTP/1.1 200 OK
//! # alice has 100
//! # And again, with a new time and signature: the same, with `idempotent-replayed: true`.
//! # Without an id: 400. With another signature, or one from 10 minutes ago: 401, and no record is looked at.
//! ```

#[path = "webhooks/event.rs"]
mod event;
#[path = "webhooks/signature.rs"]
mod signature;

use std::time::Duration;

use axum::{
    Router,
    body::Bytes,
    extract::DefaultBodyLimit,
    http::{Response, StatusCode},
    middleware,
    routing::post,
};
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tokio::net::TcpListener;
use tower_idempotency::{
    IdempotencyLayer, KeyBy, Rejection, RejectionKind, ScopeBy, sqlite::TransactionStore,
    store::Store,
};

use self::signature::{Secrets, Sender};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS accounts (name TEXT NOT NULL PRIMARY KEY, balance INTEGER NOT NULL DEFAULT 0) STRICT;
    CREATE TABLE IF NOT EXISTS payments (account TEXT NOT NULL, amount INTEGER NOT NULL) STRICT;
";

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    std::fs::create_dir_all("target")?;
    let file = SqliteConnectOptions::new()
        .filename("target/webhooks.db")
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let store = store(SqlitePool::connect_with(file).await?).await?;
    // Real ones come from where secrets are kept.
    let secrets = Secrets::from([("acme".to_owned(), b"whsec_of_acme".to_vec())]);
    let address = std::env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app(store, secrets)).await?)
}

pub(crate) async fn store(pool: SqlitePool) -> Result<TransactionStore, BoxError> {
    sqlx::raw_sql(SCHEMA).execute(&pool).await?;
    let store = TransactionStore::new(pool);
    store.migrate().await?;
    Ok(store)
}

pub(crate) fn app(store: impl Store, secrets: Secrets) -> Router {
    // Two senders may number their events alike.
    let idempotency = IdempotencyLayer::new(store, ScopeBy::extension(|s: &Sender| s.0.clone()))
        .require_key()
        .with_key(KeyBy::body(|_, body| event::id(body)))
        .with_rejection(refusal)
        // Longer than the sender goes on delivering, and longer than a signature is good for.
        .with_retention(Duration::from_secs(7 * 24 * 60 * 60));
    Router::new()
        .route("/webhooks", post(event::receive))
        .route_layer(idempotency)
        .layer(middleware::from_fn_with_state(
            secrets.into(),
            signature::verify,
        ))
        .layer(DefaultBodyLimit::max(64 * 1024))
}

/// The layer's own answer to a request without a key speaks of a header.
fn refusal(rejection: &Rejection) -> Response<Bytes> {
    if rejection.kind() != RejectionKind::MissingKey {
        return rejection.to_response();
    }
    let mut response = Response::new(Bytes::from_static(b"the event has no id"));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}
