//! What the outbox example promises, with the shop, the relays and the mail service in processes of their own.
#![cfg(unix)]

mod http_proxy;
mod server;

use std::{process::Stdio, time::Duration};

use http::{Method, StatusCode};
use http_body_util::Full;
use http_proxy::{Fault, Proxy};
use server::{Answer, Caller, LIMIT, example, fresh_key, listening};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{interval, timeout},
};

#[tokio::test]
async fn an_order_is_mailed_once_however_often_it_is_sent() {
    let world = World::start().await;
    let _relay = world.relay();
    let key = fresh_key();
    let sent: Vec<_> = (0..5).map(|_| tokio::spawn(world.order(&key, 2))).collect();
    for answer in sent {
        let answer = answer.await.expect("an answer");
        assert!(
            answer.status == StatusCode::CREATED || answer.code() == "in_flight",
            "{answer:?}"
        );
    }
    let again = world.order(&key, 2).await;
    assert!(again.is_replay());
    assert_eq!(world.order(&fresh_key(), 3).await.status, 201);

    // Mails go out in the order in which they were written: with the second one all of the first order's are out.
    world.until_delivered(2).await;
    assert_eq!(
        world.sent().await,
        [
            r#"{"subject":"Your order 1: 2 × lamp","to":"alice@example.com"}"#,
            r#"{"subject":"Your order 2: 3 × lamp","to":"alice@example.com"}"#,
        ]
    );
    assert_eq!(world.keys().len(), 2);
    assert_eq!(world.shop("SELECT count(*) FROM outbox").await, 2);
}

#[tokio::test]
async fn an_order_that_is_rolled_back_sends_no_mail() {
    let world = World::start().await;
    let _relay = world.relay();
    let key = fresh_key();
    for _ in 0..2 {
        let refused = world.order(&key, 99).await;
        assert_eq!(
            (refused.status, refused.is_replay()),
            (StatusCode::CONFLICT, false)
        );
        assert_eq!(refused.body, "not enough lamp");
        assert_eq!(world.shop("SELECT count(*) FROM outbox").await, 0);
    }
    assert_eq!(world.order(&fresh_key(), 1).await.status, 201);
    world.until_delivered(1).await;
    assert_eq!(world.sent().await.len(), 1);
    assert_eq!(world.shop("SELECT count(*) FROM orders").await, 1);
}

#[tokio::test]
async fn an_order_whose_key_was_forgotten_is_not_placed_again_while_its_mail_is_kept() {
    let world = World::start().await;
    let key = fresh_key();
    assert_eq!(world.order(&key, 2).await.status, 201);
    // As it is after the retention.
    world
        .change("DELETE FROM tower_idempotency_transactions")
        .await;
    let late = world.order(&key, 2).await;
    assert_eq!(late.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(world.shop("SELECT count(*) FROM orders").await, 1);
    assert_eq!(world.shop("SELECT count(*) FROM outbox").await, 1);
}

#[tokio::test]
async fn a_mail_whose_relay_is_killed_before_it_has_marked_it_is_delivered_again_under_the_same_key()
 {
    for (fault, sent) in [(Fault::HoldRequest, 0), (Fault::HoldAnswer, 1)] {
        let world = World::start().await;
        world.post_office.script(MAIL, [fault]);
        let mut relay = world.relay();
        assert_eq!(world.order(&fresh_key(), 2).await.status, 201);
        world.post_office.struck(1).await;
        assert_eq!(world.sent().await.len(), sent);
        relay.kill().await.expect("a dead relay");
        assert_eq!(world.shop(DELIVERED).await, 0);

        world.end_the_claim().await;
        world.post_office.release();
        // One that met the first delivery at work would be told to come again, and do so after its claim.
        World::until(1, async || world.sent().await.len()).await;
        let _relay = world.relay();
        world.until_delivered(1).await;
        let keys = world.keys();
        assert_eq!(keys.len(), 2);
        assert_eq!(keys[0], keys[1]);
        assert_eq!(world.sent().await.len(), 1);
    }
}

#[tokio::test]
async fn of_several_relays_one_delivers_each_mail() {
    let world = World::start().await;
    let _relays = [world.relay(), world.relay(), world.relay()];
    for _ in 0..20 {
        assert_eq!(world.order(&fresh_key(), 1).await.status, 201);
    }
    world.until_delivered(20).await;
    let mut keys = world.keys();
    assert_eq!(keys.len(), 20);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 20);
    assert_eq!(world.sent().await.len(), 20);
}

#[tokio::test]
async fn a_mail_that_fails_is_tried_again_and_holds_up_no_other() {
    let world = World::start().await;
    let refused = Fault::answer(StatusCode::BAD_GATEWAY, &[], "");
    world.post_office.script(MAIL, [refused]);
    for _ in 0..2 {
        assert_eq!(world.order(&fresh_key(), 1).await.status, 201);
    }
    let _relay = world.relay();
    world.until_delivered(1).await;
    world.end_the_claim().await;
    world.until_delivered(2).await;
    let keys = world.keys();
    assert_eq!(keys.len(), 3);
    assert_eq!(keys[2], keys[0]);
    assert_eq!(world.sent().await.len(), 2);
}

#[tokio::test]
async fn a_mail_whose_key_may_be_forgotten_is_left_to_a_person() {
    let world = World::start().await;
    for _ in 0..2 {
        assert_eq!(world.order(&fresh_key(), 1).await.status, 201);
    }
    // The relay had its first try two days ago, and nobody knows what became of it.
    world
        .change("UPDATE outbox SET first_sent = unixepoch() - 172800 WHERE rowid = 1")
        .await;
    let _relay = world.relay();
    world.until_delivered(1).await;
    let delivered = "SELECT rowid FROM outbox WHERE delivered IS NOT NULL";
    assert_eq!(world.shop(delivered).await, 2);
    assert_eq!(world.keys().len(), 1);
}

const MAIL: &str = "POST /mails";
const DELIVERED: &str = "SELECT count(*) FROM outbox WHERE delivered IS NOT NULL";

/// A shop, a mail service, and what stands between it and the relays.
struct World {
    directory: TempDir,
    client: Caller,
    post_office: Proxy,
    _servers: [Child; 2],
}

impl World {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let [mut shop, mut mail] = ["shop", "mail"].map(|part| {
            let mut command = part_of_the_example(part, &directory);
            command.stdout(Stdio::piped());
            command.spawn().expect("a process")
        });
        let client = Caller::new(listening(&mut shop).await);
        let post_office = Proxy::start(listening(&mut mail).await).await;
        Self {
            directory,
            client,
            post_office,
            _servers: [shop, mail],
        }
    }

    fn relay(&self) -> Child {
        part_of_the_example("relay", &self.directory)
            .env("MAIL_URL", format!("http://{}", self.post_office.address()))
            .spawn()
            .expect("a process")
    }

    fn order(&self, key: &str, quantity: u32) -> impl Future<Output = Answer> + use<> {
        let client = self.client.clone();
        let order =
            format!(r#"{{"item":"lamp","quantity":{quantity},"email":"alice@example.com"}}"#);
        let request = client
            .request(Method::POST, "/orders")
            .header("x-account", "alice")
            .header("idempotency-key", key)
            .header("content-type", "application/json")
            .body(Full::from(order));
        async move { client.send(request.expect("a request")).await }
    }

    async fn until_delivered(&self, mails: i64) {
        Self::until(mails, async || self.shop(DELIVERED).await).await;
    }

    async fn until<T: PartialOrd>(mails: T, count: impl AsyncFn() -> T) {
        let mut pause = interval(Duration::from_millis(20));
        let counted = async {
            while count().await < mails {
                pause.tick().await;
            }
        };
        timeout(LIMIT, counted).await.expect("so many mails");
    }

    /// A number from the shop's database, through a connection of the test's own.
    async fn shop(&self, sql: &'static str) -> i64 {
        let mut connection = self.connect("shop.db").await;
        let number = sqlx::query_scalar(sql).fetch_one(&mut connection).await;
        connection.close().await.expect("a closed connection");
        number.expect("a number")
    }

    /// Of the one mail that a relay has claimed and not delivered, as its time would.
    async fn end_the_claim(&self) {
        let end = "UPDATE outbox SET claimed_until = unixepoch() WHERE delivered IS NULL AND claimed_until > unixepoch()";
        self.change(end).await;
    }

    async fn change(&self, sql: &'static str) {
        let mut connection = self.connect("shop.db").await;
        let changed = sqlx::query(sql).execute(&mut connection).await;
        connection.close().await.expect("a closed connection");
        assert_eq!(changed.expect("a change").rows_affected(), 1);
    }

    /// Of all mails that relays have tried to deliver.
    fn keys(&self) -> Vec<String> {
        let mails = self.post_office.requests(MAIL);
        mails.iter().map(http_proxy::Request::key).collect()
    }

    async fn sent(&self) -> Vec<String> {
        let mut connection = self.connect("mail.db").await;
        let sent = sqlx::query_scalar("SELECT mail FROM sent ORDER BY id");
        let sent = sent.fetch_all(&mut connection).await;
        connection.close().await.expect("a closed connection");
        sent.expect("mails")
    }

    async fn connect(&self, name: &str) -> SqliteConnection {
        let file = SqliteConnectOptions::new().filename(self.directory.path().join(name));
        let connection = SqliteConnection::connect_with(&file).await;
        connection.expect("a connection")
    }
}

fn part_of_the_example(part: &str, directory: &TempDir) -> Command {
    let mut command = Command::new(example("outbox"));
    command
        .arg(part)
        .env("DIRECTORY", directory.path())
        .env("ADDR", "127.0.0.1:0")
        .env("MAIL_ADDR", "127.0.0.1:0")
        .env_remove("MAIL_URL")
        .kill_on_drop(true);
    command
}
