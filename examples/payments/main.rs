//! A payments server whose charges happen once, whatever dies in between: the key, the charge and the answer commit in one
//! transaction of the application's own database.
//!
//! Run with `cargo run --example payments --features axum,sqlite`, or with `--features axum,sqlite,postgres` (or `mysql`) and
//! `DATABASE_URL=postgres://…` (or `mysql://…`).
//!
//! ```sh
//! curl -i localhost:3000/charges -H 'Authorization: Bearer alice' -H 'Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324' \
//!     -H 'Content-Type: application/json' -d '{"amount":1000,"currency":"eur","card":"tok_visa"}'
//! # HTTP/1.1 201 Created
//! # location: /charges/b0a4…
//! # {"id":"b0a4…","amount":1000,"currency":"eur","account":"alice"}
//! #
//! # The same line again: the same answer, with `idempotent-replayed: true`. With another amount: 422 `key_reused`.
//! curl localhost:3000/charges -H 'Authorization: Bearer alice'
//! # [{"id":"b0a4…","amount":1000,"currency":"eur","account":"alice"}]
//! curl -i localhost:3000/refunds -H 'Authorization: Bearer alice' -H 'Idempotency-Key: 3f0c5d2a-98f0-4e3a-8f7e-0d7f0b8a5c11' \
//!     -H 'Content-Type: application/json' -d '{"charge":"b0a4…"}'
//! # HTTP/1.1 201 Created
//! # {"id":"77d1…","charge":"b0a4…","amount":1000}
//! ```
//!
//! Other cards: `tok_slow` takes two seconds, `tok_declined` is 402, `tok_error` fails and `tok_panic` panics after the charge
//! was written. Accounts: `alice` and `bob`.
//!
//! `-- demo` instead tells the story of two crashes: it kills the server in the middle of a charge, and retries.
//!
//! The same handlers on a lease store: with `STORE_URL=redis://…` (and `--features axum,sqlite,redis`) or `STORE_URL=memory:` the
//! keys are kept there, and the handlers commit the charges themselves. A crash between a charge and its saved answer then blocks
//! the key until its lease ends. By `TAKEOVER=refuse`, the default, a retry is told 409 `outcome_unknown` from then on: at most one
//! charge. By `TAKEOVER=run-again` the handler runs again, and looks first whether the charge was made.
//!
//! Environment: `ADDR` (127.0.0.1:3000), `DATABASE_URL` (sqlite://target/payments.db), `RUN_LIMIT` (60, in seconds), after which
//! a charge is given up, `STORE_URL`, `TAKEOVER`, `LEASE` (30, in seconds), and `PAYMENTS_CRASH` (`before-commit` or
//! `after-commit`; on a lease store, before or after the answer is saved), which makes the server abort at that point of a charge.

mod api;
mod auth;
mod charge;
mod client;
mod crash;
mod databases;
mod demo;
mod lease_store;
mod ledger;
mod order;
mod problem;
mod refund;
mod server;
mod settings;
mod stop;
mod transaction;

use std::{error::Error, io, process, thread};

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    match std::env::args().nth(1).as_deref() {
        None => server::serve().await,
        Some("demo") => demo::run().await,
        Some("child") => {
            exit_with_parent();
            server::serve().await
        }
        Some(other) => Err(format!("unknown argument {other:?}: give none, or `demo`").into()),
    }
}

/// Ends this process when its standard input closes. Even a demo that was killed then leaves no server behind.
fn exit_with_parent() {
    thread::spawn(|| {
        drop(io::copy(&mut io::stdin(), &mut io::sink()));
        process::exit(1);
    });
}
