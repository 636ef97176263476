//! A checkout in a browser: one key for each purchase, kept over reloads, double clicks, second tabs and lost answers, until the
//! purchase has an end.
//!
//! Run with `cargo run --example checkout --features axum,sqlite` and open <http://127.0.0.1:3000>
//!
//! What there is to copy is in `page/`: `purchase.js` makes and keeps the key, `pay.js` sends it and knows what each answer means,
//! `checkout.js` shows it. The server is the ordinary one: a transaction store, and `Tx` in the handler.
//!
//! - The scope of a key is the customer. A session cookie (`HttpOnly`, `SameSite=Strict`) tells who that is, and each order names
//!   its customer: what was begun in another session is refused, instead of charged a second time.
//! - With `API_ADDR=127.0.0.1:3001` the page and the API are two origins, with CORS outside of the idempotency layer:
//!
//! ```sh
//! curl -i -X OPTIONS 127.0.0.1:3001/charges -H 'Origin: http://127.0.0.1:3000' \
//!     -H 'Access-Control-Request-Method: POST' -H 'Access-Control-Request-Headers: content-type,idempotency-key'
//! # HTTP/1.1 200 OK
//! # access-control-allow-origin: http://127.0.0.1:3000
//! # access-control-allow-headers: idempotency-key,content-type
//! ```
//!
//! - With `HOLD=1` charges can be made to take long. Press *Pay*, reload the page, open it in a second tab, and let it go on:
//!
//! ```sh
//! curl -X PUT 127.0.0.1:3000/hold      # from now on charges stop in the middle
//! curl 127.0.0.1:3000/hold             # how many do: 1
//! curl -X DELETE 127.0.0.1:3000/hold   # "Charged once"
//! ```
//!
//! Environment: `ADDR` (127.0.0.1:3000), `API_ADDR` (unset: the same), `API_URL` (where the page finds the API: `http://` and its
//! address), `DATABASE_URL` (sqlite://target/checkout.db), `HOLD` (unset).

mod api;
mod charge;
mod hold;
mod page;
mod problem;
mod session;

use std::{env, error::Error, fs, future::IntoFuture, str::FromStr};

use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tokio::net::TcpListener;

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let may_hold = env::var_os("HOLD").is_some();
    let api = api::router(database().await?, may_hold).await?;
    let listener = TcpListener::bind(variable("ADDR", "127.0.0.1:3000")).await?;
    let origin = format!("http://{}", listener.local_addr()?);
    let Ok(address) = env::var("API_ADDR") else {
        println!("listening on {origin}");
        return Ok(axum::serve(listener, page::router("")?.merge(api)).await?);
    };
    let api_listener = TcpListener::bind(address).await?;
    let api_origin = format!("http://{}", api_listener.local_addr()?);
    let page = page::router(&variable("API_URL", &api_origin))?;
    let api = api.layer(api::cors(&origin)?);
    println!("the API is on {api_origin}");
    println!("listening on {origin}");
    tokio::try_join!(
        axum::serve(listener, page).into_future(),
        axum::serve(api_listener, api).into_future(),
    )?;
    Ok(())
}

async fn database() -> Result<SqlitePool, BoxError> {
    fs::create_dir_all("target")?;
    let file =
        SqliteConnectOptions::from_str(&variable("DATABASE_URL", "sqlite://target/checkout.db"))?
            .create_if_missing(true)
            // Others read while a charge runs.
            .journal_mode(SqliteJournalMode::Wal);
    Ok(SqlitePool::connect_with(file).await?)
}

fn variable(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}
