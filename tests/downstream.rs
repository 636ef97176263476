//! The downstream example, as real processes: an app that is killed after the card network charged and before its own commit.
#![cfg(unix)]

mod server;

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use http::StatusCode;
use server::{Answer, Caller, LIMIT, example, fresh_key, listening};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// One process of the example, killed when this is dropped.
struct Process {
    child: Child,
    client: Caller,
    url: String,
}

/// A card network, and a place for an app beside it.
struct Place {
    directory: TempDir,
    network: Process,
}

impl Process {
    async fn start(mut command: Command, directory: &Path) -> Self {
        let mut child = command
            .env("ADDR", "127.0.0.1:0")
            .env("DIR", directory)
            .env("LEASE", "1.5")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("a process");
        let address = listening(&mut child).await;
        Self {
            child,
            client: Caller::new(address),
            url: format!("http://{address}"),
        }
    }

    /// `kill -9`, and waits until it is dead.
    async fn kill(&mut self) {
        let ended = self.child.try_wait().expect("its status");
        assert_eq!(ended, None, "it had ended by itself");
        self.child.kill().await.expect("a dead process");
    }
}

impl Place {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(example("downstream"));
        command.arg("network");
        let network = Process::start(command, directory.path()).await;
        Self { directory, network }
    }

    async fn app(&self, flags: &[&str]) -> Process {
        let mut command = Command::new(example("downstream"));
        command
            .arg("app")
            .args(flags)
            .env("NETWORK", &self.network.url);
        Process::start(command, self.directory.path()).await
    }

    /// A connection of the test's own to one of the databases.
    async fn connect(&self, name: &str) -> SqliteConnection {
        let file = SqliteConnectOptions::new().filename(self.directory.path().join(name));
        SqliteConnection::connect_with(&file)
            .await
            .expect("a connection")
    }

    async fn number(&self, database: &str, query: &'static str) -> i64 {
        let mut connection = self.connect(database).await;
        let number = sqlx::query_scalar(query).fetch_one(&mut connection).await;
        number.expect("a number")
    }

    /// How many charges the network made, and how often it was asked.
    async fn at_the_network(&self) -> (i64, i64) {
        let (count, asked) = (
            "SELECT count(*) FROM authorizations",
            "SELECT coalesce(sum(asked), 0) FROM authorizations",
        );
        (
            self.number("network.db", count).await,
            self.number("network.db", asked).await,
        )
    }

    async fn rows_of_the_app(&self) -> i64 {
        self.number("app.db", "SELECT count(*) FROM charges").await
    }

    async fn until(&self, (database, query): (&str, &'static str)) {
        let began = Instant::now();
        while self.number(database, query).await == 0 {
            assert!(began.elapsed() < LIMIT, "in time: {query}");
        }
    }

    /// The writer lock of a database, until it is dropped.
    async fn lock(&self, database: &str) -> SqliteConnection {
        let mut connection = self.connect(database).await;
        let begin = sqlx::query("BEGIN IMMEDIATE").execute(&mut connection);
        begin.await.expect("the writer lock");
        connection
    }

    /// Charges an app that can't commit, because another connection holds its database, and kills it when that may be; what is given
    /// is held until then. Then another app is started and asked until the dead run's lease is over.
    async fn charge_through_a_crash<T>(
        &self,
        flags: &[&str],
        may_die: impl Future<Output = T>,
    ) -> Answer {
        let mut app = self.app(flags).await;
        let key = fresh_key();
        let lock = self.lock("app.db").await;
        let client = app.client.clone();
        let request = order(&client, &key);
        let charge = tokio::spawn(async move { client.try_send(request).await });
        let held = may_die.await;
        app.kill().await;
        drop(held);
        assert!(charge.await.expect("no panic").is_none(), "no answer");
        lock.close().await.expect("the lock is free");
        assert_eq!(self.rows_of_the_app().await, 0);
        assert_eq!(self.at_the_network().await, (1, 1));

        let app = self.app(flags).await;
        let answer = until_not_in_flight(&app.client, &key).await;
        assert_eq!(answer.status, StatusCode::CREATED);
        assert_eq!(number(&answer, "attempt"), 2);
        let again = app.client.send(order(&app.client, &key)).await;
        assert!(again.is_replay());
        assert_eq!(again.lasting(), answer.lasting());
        assert_eq!(self.rows_of_the_app().await, 1);
        answer
    }
}

const RESERVED: (&str, &str) = ("keys.db", "SELECT count(*) FROM tower_idempotency_leases");
const CHARGED: (&str, &str) = ("network.db", "SELECT count(*) FROM authorizations");
const NOTED: (&str, &str) = (
    "keys.db",
    "SELECT count(*) FROM tower_idempotency_leases WHERE steps IS NOT NULL",
);

fn number(answer: &Answer, name: &str) -> i64 {
    let number = answer.json().get(name).and_then(serde_json::Value::as_i64);
    number.expect("a number")
}

fn order(client: &Caller, key: &str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    client.keyed("/charges", "alice", key, r#"{"amount":1000}"#)
}

async fn until_not_in_flight(client: &Caller, key: &str) -> Answer {
    let (began, mut refusals) = (Instant::now(), 0);
    loop {
        let answer = client.send(order(client, key)).await;
        if answer.code() != "in_flight" {
            assert_ne!(refusals, 0, "the dead run's lease was not waited for");
            return answer;
        }
        refusals += 1;
        assert!(began.elapsed() < LIMIT + Duration::from_secs(10));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_the_networks_charge_and_ours_ends_in_one_of_each() {
    let place = Place::new().await;
    let answer = place
        .charge_through_a_crash(&[], place.until(CHARGED))
        .await;
    assert_eq!(number(&answer, "authorization"), 1);
    // It was asked again, and knew the key.
    assert_eq!(place.at_the_network().await, (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_fresh_key_for_each_attempt_the_network_charges_twice() {
    let place = Place::new().await;
    let answer = place
        .charge_through_a_crash(&["--fresh-key"], place.until(CHARGED))
        .await;
    assert_eq!(number(&answer, "authorization"), 2);
    assert_eq!(place.at_the_network().await, (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_was_noted_before_the_crash_isnt_even_asked_for_again() {
    let place = Place::new().await;
    let answer = place
        .charge_through_a_crash(&["--steps"], place.until(NOTED))
        .await;
    assert_eq!(number(&answer, "authorization"), 1);
    assert_eq!(place.at_the_network().await, (1, 1));
}

/// Here the network charged and the note is missing: only the derived key is left, and enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_the_networks_charge_and_its_note_is_the_derived_keys_matter() {
    let place = Place::new().await;
    let network = place.lock("network.db").await;
    let in_the_window = async {
        place.until(RESERVED).await;
        let keys = place.lock("keys.db").await;
        network.close().await.expect("the network goes on");
        place.until(CHARGED).await;
        keys
    };
    let answer = place
        .charge_through_a_crash(&["--steps"], in_the_window)
        .await;
    assert_eq!(number(&answer, "authorization"), 1);
    assert_eq!(place.at_the_network().await, (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_that_aborts_by_its_flag_leaves_the_same() {
    let place = Place::new().await;
    let mut app = place.app(&["--crash"]).await;
    let key = fresh_key();
    let request = order(&app.client, &key);
    assert!(app.client.try_send(request).await.is_none());
    let ended = app.child.wait().await.expect("its status");
    assert!(!ended.success());
    assert_eq!(
        (place.at_the_network().await, place.rows_of_the_app().await),
        ((1, 1), 0)
    );

    let app = place.app(&[]).await;
    let answer = until_not_in_flight(&app.client, &key).await;
    assert_eq!(number(&answer, "attempt"), 2);
    assert_eq!(
        (place.at_the_network().await, place.rows_of_the_app().await),
        ((1, 2), 1)
    );
}
