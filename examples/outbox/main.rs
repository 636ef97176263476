//! An e-mail for each order, sent once: it is written down in the order's own transaction, and a relay delivers it with a key of its own.
//!
//! Run with `cargo run --example outbox --features axum,sqlite`: a shop on 127.0.0.1:3000 (`ADDR`), a mail service on 127.0.0.1:3001
//! (`MAIL_ADDR`), and a relay between them. `-- shop`, `-- mail` or `-- relay` runs one of them alone; there may be several relays.
//!
//! ```sh
//! curl -i localhost:3000/orders -H 'X-Account: alice' -H 'Idempotency-Key: 2b1d5c1e-0d6b-4f6d-8a55-6a3a4c1f3c70' \
//!     -H 'Content-Type: application/json' -d '{"item":"lamp","quantity":2,"email":"alice@example.com"}'
//! # HTTP/1.1 201 Created
//! # {"id":1,"item":"lamp","quantity":2}
//! #
//! # The same line again: the same, with `idempotent-replayed: true`. However often, and whoever is killed in between, one mail is sent:
//! curl localhost:3001/mails
//! # {"subject":"Your order 1: 2 × lamp","to":"alice@example.com"}
//! #
//! # An order that is refused, though its mail was written down already, is rolled back, and sends none. With 99 lamps:
//! # HTTP/1.1 409 Conflict
//! # not enough lamp
//! ```
//!
//! Environment besides: `DIRECTORY` of the two databases (target/outbox), and `MAIL_URL` for the relay (http:// and `MAIL_ADDR`).

mod database;
mod mail;
mod relay;
mod shop;

use std::{env, error::Error};

use axum::Router;
use tokio::net::TcpListener;

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    match env::args().nth(1).as_deref() {
        None => tokio::try_join!(shop::serve(), mail::serve(), relay::run()).map(drop),
        Some("shop") => shop::serve().await,
        Some("mail") => mail::serve().await,
        Some("relay") => relay::run().await,
        Some(other) => Err(format!("unknown argument {other:?}: shop, mail or relay").into()),
    }
}

async fn serve(app: Router, address: String) -> Result<(), BoxError> {
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

fn setting(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}
