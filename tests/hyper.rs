//! The hyper example does what its first lines say.

#![cfg(unix)]

mod server;

use std::process::Stdio;

use http::{Method, StatusCode};
use http_body_util::Full;
use server::{Answer, Caller, example, listening};
use tokio::process::Command;

async fn transfer(client: &Caller, headers: &[(&str, &str)], amount: &'static str) -> Answer {
    let mut request = client.request(Method::POST, "/transfers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::from(amount));
    client.send(request.expect("a request")).await
}

#[tokio::test]
async fn hyper_transfers_once_per_account_and_key() {
    let mut process = Command::new(example("hyper"))
        .env("ADDR", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a process");
    let client = Caller::new(listening(&mut process).await);
    let (alice, bob, key) = (
        ("x-account", "alice"),
        ("x-account", "bob"),
        ("idempotency-key", "k"),
    );

    let first = transfer(&client, &[alice, key], "10").await;
    let again = transfer(&client, &[alice, key], "10").await;
    let other = transfer(&client, &[alice, key], "11").await;
    let bobs = transfer(&client, &[bob, key], "10").await;
    let nobodys = transfer(&client, &[key], "10").await;
    let unkeyed = transfer(&client, &[alice], "10").await;

    assert_eq!(
        (first.status, &*first.body),
        (StatusCode::CREATED, &b"transfer 1 of alice: 10\n"[..])
    );
    assert!(!first.is_replay());
    assert!(again.is_replay());
    assert_eq!(again.lasting(), first.lasting());
    assert_eq!(
        (other.status, other.code().as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "key_reused")
    );
    assert_eq!(
        (bobs.status, &*bobs.body),
        (StatusCode::CREATED, &b"transfer 2 of bob: 10\n"[..])
    );
    assert_eq!(
        (nobodys.status, nobodys.code().as_str()),
        (StatusCode::FORBIDDEN, "missing_scope")
    );
    assert_eq!(
        (unkeyed.status, unkeyed.code().as_str()),
        (StatusCode::BAD_REQUEST, "missing_key")
    );
}
