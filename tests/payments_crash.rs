//! How the payments example ends: by its crash points, by a signal, and how its demo tells of it.
#![cfg(unix)]

mod payments_app;
mod server;
mod servers;

use std::{os::unix::process::ExitStatusExt, process::Stdio};

use http::StatusCode;
use payments_app::{App, Database, on_each_database};
use rustix::process::Signal;
use server::{example, fresh_key, order};
use tokio::{io::AsyncWriteExt, net::TcpStream, process::Command};

on_each_database!(
    a_crash_before_the_commit_charges_nothing_and_the_retry_charges,
    a_crash_after_the_commit_has_charged_and_the_retry_is_answered_from_the_record,
    sigterm_lets_a_charge_end_whose_client_has_gone,
);

async fn a_crash_before_the_commit_charges_nothing_and_the_retry_charges(database: Database) {
    let key = fresh_key();
    crash("before-commit", &database, &key).await;
    assert_eq!(database.charges_under(&key).await, 0);

    let app = App::start(&database).await;
    let retry = app.client().charge(&key, &order("tok_visa")).await;
    assert_eq!(retry.status, StatusCode::CREATED);
    assert!(!retry.is_replay());
    assert_eq!(database.charges_under(&key).await, 1);
}

async fn a_crash_after_the_commit_has_charged_and_the_retry_is_answered_from_the_record(
    database: Database,
) {
    let key = fresh_key();
    crash("after-commit", &database, &key).await;
    assert_eq!(database.charges_under(&key).await, 1);

    let app = App::start(&database).await;
    let client = app.client();
    let retry = client.charge(&key, &order("tok_visa")).await;
    assert_eq!(retry.status, StatusCode::CREATED);
    assert!(retry.is_replay());
    let charge = client
        .get("alice", &format!("/charges/{}", retry.id()))
        .await;
    assert_eq!(charge.json(), retry.json());
    assert_eq!(database.charges_under(&key).await, 1);
}

/// The keys are in Redis, so that the charge and its answer are saved one after the other.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_the_takeover_decides_about_a_charge_whose_answer_was_not_saved() {
    let Some(redis) = tokio::task::block_in_place(servers::redis) else {
        return;
    };
    for takeover in ["refuse", "run-again"] {
        let (database, key) = (Database::sqlite(), fresh_key());
        let store = [
            ("STORE_URL", redis.url()),
            ("TAKEOVER", takeover),
            ("LEASE", "1.5"),
        ];
        crash_with("before-commit", &database, &key, &store).await;
        let charges = database.charges().await;
        assert_eq!(charges.len(), 1);

        let app = App::start_with(&database, &store).await;
        let (retry, refusals) = until_not_in_flight(&app, &key).await;
        assert_ne!(refusals, 0, "the lease was not waited for");
        if takeover == "refuse" {
            let told = (retry.status, retry.code());
            assert_eq!(told, (StatusCode::CONFLICT, "outcome_unknown".to_owned()));
        } else {
            assert_eq!(retry.status, StatusCode::CREATED);
            assert_eq!(retry.id(), charges[0].id);
            assert!(!retry.is_replay());
        }
        let again = app.client().charge(&key, &order("tok_visa")).await;
        assert_eq!(again.lasting(), retry.lasting());
        assert_eq!(again.is_replay(), takeover == "run-again");
        assert_eq!(database.charges().await, charges);
    }
}

#[cfg(feature = "redis")]
async fn until_not_in_flight(app: &App, key: &str) -> (server::Answer, u32) {
    let mut refusals = 0;
    loop {
        let answer = app.client().charge(key, &order("tok_visa")).await;
        if answer.code() != "in_flight" {
            return (answer, refusals);
        }
        refusals += 1;
    }
}

/// Charges a server that dies of it.
async fn crash(point: &str, database: &Database, key: &str) {
    crash_with(point, database, key, &[]).await;
}

async fn crash_with(point: &str, database: &Database, key: &str, environment: &[(&str, &str)]) {
    let mut environment = environment.to_vec();
    environment.push(("PAYMENTS_CRASH", point));
    let app = App::start_with(database, &environment).await;
    let client = app.client();
    // Only a charge that is made dies.
    let declined = client.charge(&fresh_key(), &order("tok_declined")).await;
    assert_eq!(declined.status, StatusCode::PAYMENT_REQUIRED);
    let request = client.keyed("/charges", "alice", key, &order("tok_visa"));
    assert!(client.try_send(request).await.is_none());
    assert_eq!(app.ended().await.signal(), Some(Signal::ABORT.as_raw()));
}

#[tokio::test]
async fn a_signal_lets_a_running_charge_end_and_answer() {
    for signal in [Signal::TERM, Signal::INT] {
        let (database, key) = (Database::sqlite(), fresh_key());
        let app = App::start(&database).await;
        let client = app.client();
        let charge = client.start_slow(&key).await;
        app.signal(signal);

        assert_eq!(charge.await.expect("an answer").status, StatusCode::CREATED);
        assert_eq!(app.ended().await.code(), Some(0));
        assert_eq!(database.charges_under(&key).await, 1);
    }
}

async fn sigterm_lets_a_charge_end_whose_client_has_gone(database: Database) {
    let key = fresh_key();
    let app = App::start(&database).await;
    let client = app.client();
    let charge = client.start_slow(&key).await;
    charge.abort();
    assert!(charge.await.expect_err("no answer").is_cancelled());
    assert_eq!(
        database.charges_under(&key).await,
        0,
        "the charge was over too soon for this test"
    );
    app.signal(Signal::TERM);
    assert_eq!(app.ended().await.code(), Some(0));
    assert_eq!(database.charges_under(&key).await, 1);

    let app = App::start(&database).await;
    let retry = app.client().charge(&key, &order("tok_slow")).await;
    assert_eq!(retry.status, StatusCode::CREATED);
    assert!(retry.is_replay());
    assert_eq!(database.charges_under(&key).await, 1);
}

#[tokio::test]
async fn sigterm_does_not_wait_for_ever_for_a_client_that_sent_half_a_request() {
    let (database, key) = (Database::sqlite(), fresh_key());
    let app = App::start(&database).await;
    let mut socket = TcpStream::connect(app.address).await.expect("a connection");
    let body = order("tok_visa");
    let (sent, _unsent) = body.split_at(body.len() / 2);
    let request = format!(
        "POST /charges HTTP/1.1\r\nHost: payments\r\nAuthorization: Bearer alice\r\nContent-Type: application/json\r\n\
         Idempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n{sent}",
        body.len()
    );
    socket
        .write_all(request.as_bytes())
        .await
        .expect("half a request");
    // The server has accepted by now: another connection came after it.
    app.client().get("alice", "/charges").await;

    app.signal(Signal::TERM);
    assert_eq!(app.ended().await.code(), Some(0));
    assert_eq!(database.charges_under(&key).await, 0);
}

#[tokio::test]
async fn the_server_ends_when_its_parent_does() {
    let database = Database::sqlite();
    let mut app = App::start(&database).await;
    app.close_input();
    assert_eq!(app.ended().await.code(), Some(1));
}

#[tokio::test]
async fn the_demo_ends_with_one_charge_per_key() {
    let demo = Command::new(example("payments"))
        .arg("demo")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("a demo");
    let story = String::from_utf8(demo.stdout).expect("a story");
    assert_eq!(demo.status.code(), Some(0), "{story}");
    let (_, counts) = story.split_once("Charges per key").expect("the count");
    let counts: Vec<_> = counts.lines().skip(1).map(str::trim).collect();
    assert_eq!(counts.len(), 3, "{story}");
    assert!(counts.iter().all(|line| line.ends_with(": 1")), "{story}");
    assert_eq!(story.matches("no answer").count(), 2, "{story}");
}
