//! The example does what its first lines say.

use std::{net::SocketAddr, process::Stdio};

use tokio::process::Command;

use crate::processes::{example, listening};

const KEY: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";

async fn client(address: SocketAddr, arguments: &[&str]) -> String {
    let process = Command::new(example("grpc"))
        .args(arguments)
        .env("ADDR", address.to_string())
        .kill_on_drop(true)
        .output();
    let output = process.await.expect("a process");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
async fn the_example_charges_once_for_each_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let database = directory.path().join("grpc.db");
    let mut process = Command::new(example("grpc"))
        .env("ADDR", "127.0.0.1:0")
        .env("DATABASE_URL", format!("sqlite://{}", database.display()))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a process");
    let server = listening(&mut process).await;

    let first = client(server, &["charge", KEY, "1000"]).await;
    assert_eq!(first, "charge 1: 1000 eur\n");
    let again = client(server, &["charge", KEY, "1000"]).await;
    assert_eq!(again, "charge 1: 1000 eur (replayed)\n");
    let other = client(server, &["charge", KEY, "2000"]).await;
    assert!(other.starts_with("InvalidArgument: "), "{other}");
    assert!(other.ends_with(" (key_reused)\n"), "{other}");
    let declined = client(server, &["charge", "another", "1000", "tok_declined"]).await;
    assert_eq!(declined, "FailedPrecondition: the card was declined\n");
    let list = client(server, &["list"]).await;
    assert_eq!(list, "charge 1: 1000 eur\n");
}
