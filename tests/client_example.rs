//! The client example does what its first lines say, against the hyper example.
#![cfg(all(unix, feature = "client", feature = "memory"))]

mod server;

use std::{
    net::SocketAddr,
    process::{Output, Stdio},
};

use server::{example, listening};
use tokio::process::Command;

async fn client(address: SocketAddr, arguments: &[&str]) -> Output {
    let url = format!("http://{address}/transfers");
    let mut command = Command::new(example("client"));
    command.arg(url).args(arguments).kill_on_drop(true);
    command.output().await.expect("an end")
}

#[tokio::test]
async fn a_client_that_is_run_again_for_one_order_transfers_once() {
    let mut process = Command::new(example("hyper"))
        .env("ADDR", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a process");
    let address = listening(&mut process).await;

    let first = client(address, &["10", "order 17"]).await;
    let again = client(address, &["10", "order 17"]).await;
    let changed = client(address, &["11", "order 17"]).await;
    let other = client(address, &["10"]).await;
    let another = client(address, &["10"]).await;
    let usage = client(address, &[]).await;

    let text = |output: &Output| String::from_utf8(output.stdout.clone()).expect("a text");
    assert_eq!(
        text(&first),
        "201 Created after 1 attempt\ntransfer 1 of shop: 10\n"
    );
    assert_eq!(
        text(&again),
        "201 Created after 1 attempt, a replay\ntransfer 1 of shop: 10\n"
    );
    assert!(text(&changed).starts_with("422 Unprocessable Entity after 1 attempt\n"));
    assert!(text(&other).ends_with("transfer 2 of shop: 10\n"));
    assert!(text(&another).ends_with("transfer 3 of shop: 10\n"));
    let codes = [first, again, changed, other, another, usage].map(|run| run.status.code());
    assert_eq!(codes, [0, 0, 1, 0, 0, 2].map(Some));
}
