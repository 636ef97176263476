//! A charge that calls another service, a card network that is a process of its own: one charge there, and one row here, whenever the
//! app dies.
//!
//! Run with `cargo run --example downstream --features axum,sqlite -- network`, and in another terminal `… -- app`.
//!
//! ```sh
//! curl -i localhost:3000/charges -H 'Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324' \
//!     -H 'Content-Type: application/json' -d '{"amount":1000}'
//! # HTTP/1.1 201 Created
//! # {"amount":1000,"attempt":1,"authorization":1,"id":"7c33…"}
//! curl localhost:4000/authorizations
//! # [{"amount":1000,"asked":1,"id":1}]
//! ```
//!
//! `… -- app --crash` dies when the network has answered, before its own commit. Charge with another key, start the app without the flag,
//! and repeat the request: 409 `in_flight` until the lease of the dead run ends (`LEASE`, 10 seconds), and then 201, with attempt 2. The
//! network was asked twice, and has one authorization, because the key that the app sends there is derived from the client's.
//! With `--fresh-key`, an app that makes a new key for each call, it has two. With `--steps` the network isn't asked again: what it
//! answered is noted with the key.
//!
//! Environment: `ADDR` (127.0.0.1:3000, and 127.0.0.1:4000 for the network), `NETWORK` (http://127.0.0.1:4000), `LEASE` (10, in seconds),
//! `DIR` (target/downstream), where the databases are.

mod app;
mod failure;
mod network;

use std::{env, error::Error, fs, path::PathBuf};

use axum::Router;
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tokio::net::TcpListener;

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((command, [])) if command == "network" => {
            serve(network::router().await?, "127.0.0.1:4000").await
        }
        Some((command, flags)) if command == "app" => {
            serve(app::router(flags).await?, "127.0.0.1:3000").await
        }
        _ => Err("give `network`, or `app` with --crash, --fresh-key, --steps".into()),
    }
}

async fn serve(router: Router, address: &str) -> Result<(), BoxError> {
    let address = env::var("ADDR").unwrap_or_else(|_| address.to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}

/// A pool on a file of this name, which is made with these tables if there is none.
async fn database(name: &str, schema: &'static str) -> Result<SqlitePool, BoxError> {
    let directory = env::var_os("DIR").map_or_else(|| "target/downstream".into(), PathBuf::from);
    fs::create_dir_all(&directory)?;
    let file = SqliteConnectOptions::new()
        .filename(directory.join(name))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePool::connect_with(file).await?;
    sqlx::raw_sql(schema).execute(&pool).await?;
    Ok(pool)
}
