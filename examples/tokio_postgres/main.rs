//! Transfers that happen once, over tokio-postgres: a small transaction store of one's own lends its transaction to the
//! handler, so that key, transfer and answer commit together.
//!
//! Run with `DATABASE_URL=postgres://… cargo run --example tokio_postgres --features axum,conformance` (`ADDR` is 127.0.0.1:3000)
//!
//! ```sh
//! curl -i localhost:3000/transfers -H 'Idempotency-Key: 5b1f6a0e-8c52-4d0b-a9c1-0e6f3d2c7b94' \
//!     -H 'Content-Type: application/json' -d '{"from":"alice","to":"bob","amount":70}'
//! # HTTP/1.1 201 Created
//! # {"id":1,"from":"alice","to":"bob","amount":70}
//! #
//! # The same line again: the same, with `idempotent-replayed: true`. Of the 100 in a new database alice has 30 left, so with
//! # another key:
//! # HTTP/1.1 409 Conflict
//! # alice has not enough
//! # That answer is not kept: when she has 70 again, the same key may transfer them.
//! ```
//!
//! For another library, read `store` first, then `lock`, `transaction` and `record`: their order of statements is what makes
//! it correct. `connections` is in place of a pool, and each statement waits for the one before, where a faster store would
//! send several at once.
//!
//! Check it with `cargo test --example tokio_postgres --features axum,conformance,postgres` (`postgres` starts the server)

mod connections;
mod error;
mod lock;
mod record;
mod running;
mod store;
#[cfg(all(test, feature = "postgres"))]
mod tests;
mod transaction;
mod tx;

use axum::{Json, Router, http::StatusCode, routing::post};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_postgres::{Config, Error};
use tower_idempotency::{IdempotencyLayer, ScopeBy};

use crate::{connections::Connections, store::TransactionStore, tx::Tx};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS accounts (name text PRIMARY KEY, balance int8 NOT NULL);
    CREATE TABLE IF NOT EXISTS transfers (
        id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        source text NOT NULL, target text NOT NULL, amount int8 NOT NULL
    );
    INSERT INTO accounts VALUES ('alice', 100), ('bob', 0) ON CONFLICT DO NOTHING";

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Failure = (StatusCode, String);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let database = std::env::var("DATABASE_URL")?.parse()?;
    let address = std::env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    let app = app(database).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

async fn app(database: Config) -> Result<Router, BoxError> {
    let connections = Connections::new(database, 10);
    connections.batch_execute(SCHEMA).await?;
    let store = TransactionStore::new(connections).await?;
    // All clients here are one bank. With several, a scope keeps their keys apart: see the payments example.
    let idempotency = IdempotencyLayer::new(store, ScopeBy::single_tenant()).require_key();
    let routes = Router::new().route("/transfers", post(transfer));
    Ok(routes.route_layer(idempotency))
}

#[derive(Deserialize, Serialize)]
struct Order {
    from: String,
    to: String,
    amount: u32,
}

#[derive(Serialize)]
struct Transfer {
    id: i64,
    #[serde(flatten)]
    order: Order,
}

async fn transfer(
    tx: Tx,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Transfer>), Failure> {
    let Order { from, to, amount } = &order;
    let amount = i64::from(*amount);
    // In one order for all, so that opposite transfers don't deadlock.
    let lock = "SELECT 1 FROM accounts WHERE name IN ($1, $2) ORDER BY name FOR UPDATE";
    let insert = "INSERT INTO transfers (source, target, amount) VALUES ($1, $2, $3) RETURNING id";
    let take = "UPDATE accounts SET balance = balance - $1 WHERE name = $2 AND balance >= $1";
    let give = "UPDATE accounts SET balance = balance + $1 WHERE name = $2";

    let accounts = tx.execute(lock, &[from, to]).await;
    if accounts.map_err(internal)? != 2 {
        return Err((StatusCode::CONFLICT, "two accounts are needed".to_owned()));
    }
    // Before the balance is checked, to show that a 4xx rolls it back.
    let inserted = tx.query_one(insert, &[from, to, &amount]).await;
    let id = inserted.and_then(|row| row.try_get(0)).map_err(internal)?;
    if tx.execute(take, &[&amount, from]).await.map_err(internal)? == 0 {
        return Err((StatusCode::CONFLICT, format!("{from} has not enough")));
    }
    tx.execute(give, &[&amount, to]).await.map_err(internal)?;
    Ok((StatusCode::CREATED, Json(Transfer { id, order })))
}

fn internal(error: Error) -> Failure {
    eprintln!("{error}");
    (StatusCode::INTERNAL_SERVER_ERROR, "internal error".into())
}
