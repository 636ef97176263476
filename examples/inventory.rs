//! Stock that is never oversold: the reservation and the lower stock commit with the answer, or not at all.
//!
//! Run with `cargo run --example inventory --features axum,sqlite` (`ADDR` is 127.0.0.1:3000)
//!
//! ```sh
//! curl -i localhost:3000/reservations -H 'Idempotency-Key: 1f2c0d34-5a86-4f3b-b1c5-5d7a1a0a3f10' \
//!     -H 'Content-Type: application/json' -d '{"item":"lamp","quantity":2}'
//! # HTTP/1.1 201 Created
//! # {"id":1,"item":"lamp","quantity":2}
//! #
//! # The same line again: the same, with `idempotent-replayed: true`. Of the 3 lamps of a new target/inventory.db 1 is left, so with another key:
//! # HTTP/1.1 409 Conflict
//! # not enough lamp
//! # That answer is not kept: when lamps come in, the same key may reserve them.
//! curl -i -X POST localhost:3000/stock/lamp/5
//! # HTTP/1.1 204 No Content
//! ```

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::post,
};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::{
    Sqlite, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tokio::net::TcpListener;
use tower_idempotency::{IdempotencyLayer, ScopeBy, Tx, sqlite::TransactionStore};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS stock (item TEXT NOT NULL PRIMARY KEY, available INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS reservations (id INTEGER PRIMARY KEY, item TEXT NOT NULL, quantity INTEGER NOT NULL) STRICT;
    INSERT OR IGNORE INTO stock (item, available) VALUES ('lamp', 3);
";

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Failure = (StatusCode, String);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    std::fs::create_dir_all("target")?;
    let file = SqliteConnectOptions::new()
        .filename("target/inventory.db")
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let app = app(SqlitePool::connect_with(file).await?).await?;
    let address = std::env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

pub(crate) async fn app(pool: SqlitePool) -> Result<Router, BoxError> {
    sqlx::raw_sql(SCHEMA).execute(&pool).await?;
    let store = TransactionStore::new(pool.clone());
    store.migrate().await?;
    // All clients here are one warehouse. With several, a scope keeps their keys apart: see the payments example.
    let idempotency = IdempotencyLayer::new(store, ScopeBy::single_tenant()).require_key();
    Ok(Router::new()
        .route("/reservations", post(reserve))
        .route_layer(idempotency)
        .route("/stock/{item}/{quantity}", post(deliver))
        .with_state(pool))
}

#[derive(Deserialize)]
struct Order {
    item: String,
    quantity: std::num::NonZeroU32,
}

async fn reserve(
    mut tx: Tx<Sqlite>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Value>), Failure> {
    let (item, quantity) = (order.item, order.quantity.get());
    // Before the stock is checked, to show that a 4xx rolls it back.
    let reserved = sqlx::query("INSERT INTO reservations (item, quantity) VALUES (?, ?)")
        .bind(&item)
        .bind(quantity)
        .execute(&mut *tx)
        .await
        .map_err(internal)?;
    let taken = sqlx::query(
        "UPDATE stock SET available = available - ?1 WHERE item = ?2 AND available >= ?1",
    )
    .bind(quantity)
    .bind(&item)
    .execute(&mut *tx)
    .await
    .map_err(internal)?;
    if taken.rows_affected() == 0 {
        return Err((StatusCode::CONFLICT, format!("not enough {item}")));
    }
    let id = reserved.last_insert_rowid();
    let reservation = json!({ "id": id, "item": item, "quantity": quantity });
    Ok((StatusCode::CREATED, Json(reservation)))
}

/// Not behind the layer: each delivery counts.
async fn deliver(
    State(pool): State<SqlitePool>,
    Path((item, quantity)): Path<(String, u32)>,
) -> Result<StatusCode, Failure> {
    sqlx::query("UPDATE stock SET available = available + ? WHERE item = ?")
        .bind(quantity)
        .bind(&item)
        .execute(&pool)
        .await
        .map_err(internal)?;
    Ok(StatusCode::NO_CONTENT)
}

fn internal(error: sqlx::Error) -> Failure {
    eprintln!("{error}");
    (StatusCode::INTERNAL_SERVER_ERROR, "internal error".into())
}
