//! The business table is the store: the client's key stands in the order itself, unique for its account, and the order is the answer.
//!
//! Run with `cargo run --example business_table --features sqlite` (`ADDR` is 127.0.0.1:3000)
//!
//! ```sh
//! curl -i localhost:3000/orders -H 'X-Account: alice' -H 'Idempotency-Key: 7d6e6f0a-7c53-4f0e-9e06-2d1f7f9f6a35' \
//!     -H 'Content-Type: application/json' -d '{"item":"lamp","quantity":2}'
//! # HTTP/1.1 201 Created
//! # {"id":1,"item":"lamp","quantity":2}
//! #
//! # The same line again: the same, with `idempotent-replayed: true`. With another quantity:
//! # HTTP/1.1 422 Unprocessable Entity: this key has made another order
//! # Without the key, or with two: 400. Without the account: 401.
//! ```

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Deserialize;
use serde_json::json;
use sqlx::SqlitePool;
use tokio::net::TcpListener;
use tower_idempotency::{IdempotencyKey, KeyFormat};

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS orders (
        id INTEGER PRIMARY KEY, account BLOB NOT NULL, client_idempotency_key TEXT NOT NULL,
        item TEXT NOT NULL, quantity INTEGER NOT NULL,
        UNIQUE (account, client_idempotency_key)
    ) STRICT;
";
const FIND: &str = "SELECT id, item, quantity FROM orders
    WHERE account = ? AND client_idempotency_key = ?";
const PLACE: &str = "INSERT INTO orders (account, client_idempotency_key, item, quantity)
    VALUES (?, ?, ?, ?)
    ON CONFLICT (account, client_idempotency_key) DO NOTHING
    RETURNING id, item, quantity";

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Failure = (StatusCode, &'static str);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    std::fs::create_dir_all("target")?;
    let pool = SqlitePool::connect("sqlite://target/business_table.db?mode=rwc").await?;
    let address = std::env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app(pool).await?).await?)
}

pub(crate) async fn app(pool: SqlitePool) -> Result<Router, BoxError> {
    sqlx::raw_sql(SCHEMA).execute(&pool).await?;
    Ok(Router::new().route("/orders", post(order)).with_state(pool))
}

#[derive(Deserialize)]
struct Order {
    item: String,
    quantity: u32,
}

async fn order(
    State(pool): State<SqlitePool>,
    headers: HeaderMap,
    Json(order): Json<Order>,
) -> Result<Response, Failure> {
    // Right where a proxy in front authenticates, sets this header, and removes it from what clients send.
    let account = only(&headers, "x-account").ok_or((StatusCode::UNAUTHORIZED, "who are you?"))?;
    let key = only(&headers, "idempotency-key");
    let key = key.and_then(|key| KeyFormat::default().parse(key).ok());
    let key = key.ok_or((StatusCode::BAD_REQUEST, "send one idempotency key"))?;

    let placed = place(&pool, account.as_bytes(), &key, &order).await;
    let ((id, item, quantity), is_new) = placed.map_err(|error| {
        eprintln!("{error}");
        (StatusCode::INTERNAL_SERVER_ERROR, "try again with this key")
    })?;
    if item != order.item || quantity != order.quantity {
        let other = "this key has made another order";
        return Err((StatusCode::UNPROCESSABLE_ENTITY, other));
    }
    let replayed = (!is_new).then_some([("idempotent-replayed", "true")]);
    let order = json!({ "id": id, "item": item, "quantity": quantity });
    Ok((StatusCode::CREATED, replayed, Json(order)).into_response())
}

/// The order of this key, and whether this call has placed it.
async fn place(
    pool: &SqlitePool,
    account: &[u8],
    key: &IdempotencyKey,
    order: &Order,
) -> Result<((i64, String, u32), bool), sqlx::Error> {
    loop {
        // A retry ends here: a read takes no lock. A failed insert would be as right, but takes the writer's turn.
        let find = sqlx::query_as(FIND).bind(account).bind(key.as_str());
        if let Some(found) = find.fetch_optional(pool).await? {
            return Ok((found, false));
        }
        let place = sqlx::query_as(PLACE).bind(account).bind(key.as_str());
        let place = place.bind(&order.item).bind(order.quantity);
        if let Some(placed) = place.fetch_optional(pool).await? {
            return Ok((placed, true));
        }
        // No row: another request with this key has committed in between. It is there to be found now.
    }
}

/// Two lines are as bad as none: which of them counts?
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().filter(|line| !line.is_empty());
    line.filter(|_| lines.next().is_none())
}
