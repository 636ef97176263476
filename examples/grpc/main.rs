//! A gRPC payments service whose charges happen once: the key, the charge and the reply commit in one transaction of SQLite.
//!
//! Run with `cargo run --example grpc --features sqlite`, and then, beside it:
//!
//! ```sh
//! cargo run --example grpc --features sqlite -- charge 8e03978e-40d5-43dd-bc93-6894a57f9324 1000
//! # charge 1: 1000 eur
//! #
//! # The same line again: the same charge.
//! # charge 1: 1000 eur (replayed)
//! #
//! # With another amount: the key is another call's.
//! # InvalidArgument: This idempotency key was used for another request, […] (key_reused)
//! #
//! # With a card that is declined, nothing of it is kept, and the key is free again.
//! cargo run --example grpc --features sqlite -- charge 3f0c5d2a-98f0-4e3a-8f7e-0d7f0b8a5c11 1000 tok_declined
//! # FailedPrecondition: the card was declined
//! cargo run --example grpc --features sqlite -- list
//! # charge 1: 1000 eur
//! ```
//!
//! `list` is a stream, which the layer lets pass.
//!
//! Environment: `ADDR` (127.0.0.1:50051), where to listen or to connect to, and `DATABASE_URL` (sqlite://target/grpc.db).
//! `payments.v1.rs` is made of `payments.proto` by a test (`tests/grpc/generated.rs`), so that nobody needs `protoc`.

mod client;
mod payments;
mod server;
mod service;

use std::{env, error::Error};

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let address = env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:50051".into());
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [] => {
            let database = env::var("DATABASE_URL");
            let database = database.unwrap_or_else(|_| "sqlite://target/grpc.db".into());
            server::serve(&address, &database).await
        }
        ["charge", key, amount] => client::charge(&address, key, amount.parse()?, "tok_visa").await,
        ["charge", key, amount, card] => client::charge(&address, key, amount.parse()?, card).await,
        ["list"] => client::list(&address).await,
        _ => Err("usage: grpc [charge KEY AMOUNT [CARD] | list]".into()),
    }
}
