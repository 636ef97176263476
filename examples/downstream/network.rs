//! The card network: another company's service, with an idempotency of its own. One key, one authorization.

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::SqlitePool;

use crate::{BoxError, database};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS authorizations (
        id     INTEGER PRIMARY KEY,
        key    TEXT    NOT NULL UNIQUE,
        amount INTEGER NOT NULL,
        asked  INTEGER NOT NULL DEFAULT 1
    ) STRICT;
";

pub(crate) async fn router() -> Result<Router, BoxError> {
    let pool = database("network.db", SCHEMA).await?;
    let routes = post(authorize).get(list);
    Ok(Router::new()
        .route("/authorizations", routes)
        .with_state(pool))
}

#[derive(Deserialize)]
pub(crate) struct Order {
    amount: i64,
}

/// Id, amount, and how often it was asked for.
type Row = (i64, i64, i64);

fn authorization((id, amount, asked): Row) -> Value {
    json!({ "id": id, "amount": amount, "asked": asked })
}

async fn authorize(
    State(pool): State<SqlitePool>,
    headers: HeaderMap,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Value>), StatusCode> {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok())
        .ok_or(StatusCode::BAD_REQUEST)?;
    let row: Row = sqlx::query_as(
        "INSERT INTO authorizations (key, amount) VALUES (?, ?)
         ON CONFLICT (key) DO UPDATE SET asked = asked + 1 RETURNING id, amount, asked",
    )
    .bind(key)
    .bind(order.amount)
    .fetch_one(&pool)
    .await
    .map_err(internal)?;
    if row.1 != order.amount {
        return Err(StatusCode::UNPROCESSABLE_ENTITY);
    }
    Ok((StatusCode::CREATED, Json(authorization(row))))
}

async fn list(State(pool): State<SqlitePool>) -> Result<Json<Vec<Value>>, StatusCode> {
    let rows = sqlx::query_as("SELECT id, amount, asked FROM authorizations ORDER BY id");
    let rows: Vec<Row> = rows.fetch_all(&pool).await.map_err(internal)?;
    Ok(Json(rows.into_iter().map(authorization).collect()))
}

fn internal(error: sqlx::Error) -> StatusCode {
    eprintln!("{error}");
    StatusCode::INTERNAL_SERVER_ERROR
}
