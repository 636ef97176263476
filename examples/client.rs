//! A client that charges once: hyper-util's, with one key for each call and retries.
//!
//! Run with `cargo run --example client --features client -- http://localhost:3000/charges 100 "order 17"`
//!
//! The key is derived from the order's number, so the same line again, after a crash, or tomorrow, is the same call. Without a number
//! the key is random, and each call is a charge of its own.
//!
//! ```sh
//! # In another terminal, the server: cargo run --example hyper
//! cargo run --example client --features client -- http://localhost:3000/transfers 10 "order 17"
//! # 201 Created after 1 attempt
//! # transfer 1 of shop: 10
//! #
//! # The same line again: `201 Created after 1 attempt, a replay`. While the server is down: it waits, and goes on when it is back.
//! ```

use std::{process::ExitCode, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tower::{ServiceBuilder, ServiceExt};
use tower_idempotency::{
    IdempotencyKey, ResponseBody,
    client::{Delivery, Error, IdempotentRetryLayer},
};

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(amount)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: client URL AMOUNT [ORDER]");
        return ExitCode::from(2);
    };
    let mut request = Request::post(url).header("x-account", "shop");
    if let Some(order) = arguments.next() {
        request = request.extension(IdempotencyKey::derive("charge", &order));
    }
    let request = match request.body(Full::<Bytes>::from(amount)) {
        Ok(request) => request,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };

    // In a real client this is made once, and cloned: the clones share connections and the retry budget.
    let connections = Client::builder(TokioExecutor::new()).build_http();
    let retry = IdempotentRetryLayer::new()
        // Longer than the slowest honest answer, and the whole as long as somebody waits for it.
        .with_attempt_timeout(Duration::from_secs(5))
        .with_deadline(Duration::from_secs(30))
        .with_attempts(10);
    let client = ServiceBuilder::new().layer(retry).service(connections);

    match client.oneshot(request).await {
        Ok(response) => tell(response).await,
        Err(error) => tell_error(&error),
    }
}

/// Also a refusal is an answer; only an unknown outcome isn't.
async fn tell<B>(response: Response<ResponseBody<B>>) -> ExitCode
where
    B: http_body::Body<Error: std::fmt::Display>,
{
    let status = response.status();
    let Some(delivery) = response.extensions().get::<Delivery>().cloned() else {
        return ExitCode::FAILURE;
    };
    let times = match delivery.attempts() {
        1 => "1 attempt".to_owned(),
        attempts => format!("{attempts} attempts"),
    };
    let replay = if delivery.is_replay() {
        ", a replay"
    } else {
        ""
    };
    println!("{status} after {times}{replay}");
    match response.into_body().collect().await {
        Ok(body) => print!("{}", String::from_utf8_lossy(&body.to_bytes())),
        Err(error) => eprintln!("the answer broke off: {error}"),
    }
    if delivery.outcome_is_unknown() {
        return resume_later(Some(delivery.key()));
    }
    if status.is_success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn tell_error(error: &Error) -> ExitCode {
    eprintln!("{error}");
    if error.outcome_is_unknown() {
        return resume_later(error.key());
    }
    ExitCode::FAILURE
}

/// A program that keeps its state would note down the key, and when it was first sent.
fn resume_later(key: Option<&IdempotencyKey>) -> ExitCode {
    let key = key.map_or("none", IdempotencyKey::as_str);
    eprintln!(
        "it may have happened: call again with the same order (key {key}), not with a new one"
    );
    ExitCode::from(75)
}
