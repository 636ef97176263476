//! What the webhooks example promises, asked for over real sockets.

mod server;
mod support;
#[path = "../examples/webhooks.rs"]
#[allow(dead_code, reason = "its main listens on a socket of its own")]
mod webhooks;

use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use http::{Method, StatusCode, header};
use http_body_util::Full;
use server::{Answer, Caller};
use sha2::Sha256;
use sqlx::{SqlitePool, sqlite::SqliteConnectOptions};
use support::faulty::{Call, Fault, FaultyStore};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tower_idempotency::StoreErrorKind;

const ALICE: &str = r#"{"id":"evt_0","type":"account","account":"alice"}"#;
const PAYMENT: &str = r#"{"id":"evt_1","type":"payment","account":"alice","amount":100}"#;

#[tokio::test]
async fn an_event_that_is_delivered_twenty_times_at_once_takes_effect_once() {
    let receiver = Receiver::start().await;
    assert_eq!(receiver.deliver(ALICE).await.status, StatusCode::OK);
    let deliveries: Vec<_> = (0..20)
        .map(|_| tokio::spawn(receiver.deliver(PAYMENT)))
        .collect();
    for delivery in deliveries {
        let answer = delivery.await.expect("an answer");
        if answer.status == StatusCode::OK {
            assert_eq!(answer.body, "alice has 100");
        } else {
            assert_eq!(answer.code(), "in_flight");
        }
    }
    let done = receiver.deliver(PAYMENT).await;
    assert_eq!(done.body, "alice has 100");
    assert!(done.is_replay());
    assert_eq!(receiver.payments().await, (1, Some(100)));
}

#[tokio::test]
async fn an_event_whose_handler_fails_leaves_nothing_and_is_run_again_when_it_is_redelivered() {
    let receiver = Receiver::start().await;
    for _ in 0..2 {
        let early = receiver.deliver(PAYMENT).await;
        assert_eq!(early.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(early.body, "no such account yet");
        assert_eq!(receiver.payments().await, (0, None));
    }
    receiver.deliver(ALICE).await;
    let redelivered = receiver.deliver(PAYMENT).await;
    assert_eq!(redelivered.status, StatusCode::OK);
    assert!(!redelivered.is_replay());
    assert_eq!(receiver.payments().await, (1, Some(100)));
}

#[tokio::test]
async fn an_event_is_not_called_done_while_it_runs_nor_when_the_store_is_down() {
    let receiver = Receiver::start().await;
    receiver.deliver(ALICE).await;
    let unavailable = Fault::Fails(StoreErrorKind::Unavailable);

    receiver.store.then(Call::Reserve, unavailable);
    let unheard = receiver.deliver(PAYMENT).await;
    assert_eq!(unheard.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(unheard.code(), "store_unavailable");
    assert_eq!(unheard.headers[header::RETRY_AFTER], "1");

    receiver.store.then(Call::Complete, Fault::Hangs);
    let running = tokio::spawn(receiver.deliver(PAYMENT));
    // The account's was the first.
    receiver.store.reached(Call::Complete, 2).await;
    let during = receiver.deliver(PAYMENT).await;
    assert_eq!(during.status, StatusCode::CONFLICT);
    assert_eq!(during.code(), "in_flight");
    assert_eq!(receiver.payments().await, (0, Some(0)));
    receiver.store.let_go();
    let done = running.await.expect("an answer");
    assert_eq!((done.status, done.is_replay()), (StatusCode::OK, false));
    assert!(receiver.deliver(PAYMENT).await.is_replay());
    assert_eq!(receiver.payments().await, (1, Some(100)));
}

#[tokio::test]
async fn an_event_that_is_forged_reads_no_record_and_makes_none() {
    let receiver = Receiver::start().await;
    receiver.deliver(ALICE).await;
    receiver.deliver(PAYMENT).await;
    let asked = receiver.store.count(Call::Reserve);
    let now = now();
    let genuine = signature(b"whsec_of_acme", now, PAYMENT);
    let forged = r#"{"id":"evt_1","type":"payment","account":"mallory","amount":100}"#;
    let unknown = r#"{"id":"evt_2","type":"payment","account":"alice","amount":100}"#;
    for (sender, signature, event) in [
        ("acme", genuine.clone(), forged),
        ("acme", genuine.clone(), unknown),
        ("acme", genuine.replacen("v1=", "v1=00", 1), PAYMENT),
        ("acme", genuine[..genuine.len() - 2].to_owned(), PAYMENT),
        ("acme", genuine.replacen("t=", "t=1", 1), PAYMENT),
        ("acme", format!("t={now},v1="), PAYMENT),
        ("acme", String::new(), PAYMENT),
        ("acme", signature(b"guessed", now, PAYMENT), PAYMENT),
        ("mallory", genuine.clone(), PAYMENT),
        ("globex", genuine.clone(), PAYMENT),
        (
            "acme",
            signature(b"whsec_of_acme", now - 600, PAYMENT),
            PAYMENT,
        ),
        (
            "acme",
            signature(b"whsec_of_acme", now + 600, PAYMENT),
            PAYMENT,
        ),
    ] {
        let refused = receiver.send(sender, &signature, event).await;
        assert_eq!(
            refused.status,
            StatusCode::UNAUTHORIZED,
            "{sender} {signature}"
        );
        assert!(!refused.is_replay());
    }
    let too_large = receiver.send("acme", "", &"x".repeat(64 * 1024 + 1)).await;
    assert_eq!(too_large.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(receiver.store.count(Call::Reserve), asked);
    assert_eq!(receiver.payments().await, (1, Some(100)));

    // The id that was guessed is still free, and the genuine delivery still good.
    assert_eq!(receiver.deliver(unknown).await.body, "alice has 200");
    assert!(receiver.send("acme", &genuine, PAYMENT).await.is_replay());
}

#[tokio::test]
async fn two_senders_may_use_one_event_id() {
    let receiver = Receiver::start().await;
    receiver.deliver(ALICE).await;
    receiver.deliver(PAYMENT).await;
    let signature = signature(b"whsec_of_globex", now(), PAYMENT);
    let other = receiver.send("globex", &signature, PAYMENT).await;
    assert_eq!((other.status, other.is_replay()), (StatusCode::OK, false));
    assert_eq!(receiver.payments().await, (2, Some(200)));
}

#[tokio::test]
async fn an_event_without_an_id_is_a_bad_request() {
    let receiver = Receiver::start().await;
    for event in [
        r#"{"type":"account","account":"alice"}"#,
        r#"{"id":1,"type":"account","account":"alice"}"#,
        r#"{"id":null,"type":"account","account":"alice"}"#,
        r#"{"id":"evt_0","id":"evt_1","type":"account","account":"alice"}"#,
        "[]",
        "evt_0",
        "",
    ] {
        let refused = receiver.deliver(event).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{event}");
        assert_eq!(refused.body, "the event has no id", "{event}");
    }
    let empty = receiver
        .deliver(r#"{"id":"","type":"account","account":"alice"}"#)
        .await;
    assert_eq!(
        (empty.status, &*empty.code()),
        (StatusCode::BAD_REQUEST, "invalid_key")
    );
    assert_eq!(receiver.store.count(Call::Reserve), 0);
}

struct Receiver {
    client: Caller,
    store: FaultyStore,
    file: SqliteConnectOptions,
    _directory: TempDir,
}

impl Receiver {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = SqliteConnectOptions::new()
            .filename(directory.path().join("webhooks.db"))
            .create_if_missing(true);
        let pool = SqlitePool::connect_with(file.clone())
            .await
            .expect("a pool");
        let store = FaultyStore::new(webhooks::store(pool).await.expect("a store"));
        let secrets = [("acme", "whsec_of_acme"), ("globex", "whsec_of_globex")];
        let secrets = secrets.map(|(name, secret)| (name.to_owned(), secret.as_bytes().to_vec()));
        let app = webhooks::app(store.clone(), secrets.into());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let client = Caller::new(listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            client,
            store,
            file,
            _directory: directory,
        }
    }

    /// As the sender does, with a new time and signature.
    fn deliver(&self, event: &str) -> impl Future<Output = Answer> + use<> {
        self.send("acme", &signature(b"whsec_of_acme", now(), event), event)
    }

    fn send(
        &self,
        sender: &str,
        signature: &str,
        event: &str,
    ) -> impl Future<Output = Answer> + use<> {
        let client = self.client.clone();
        let request = client
            .request(Method::POST, "/webhooks")
            .header("webhook-sender", sender)
            .header("webhook-signature", signature)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(event.to_owned()));
        async move { client.send(request.expect("a request")).await }
    }

    /// How many there are, and what Alice has, by a pool of the test's own.
    async fn payments(&self) -> (i64, Option<i64>) {
        let pool = SqlitePool::connect_with(self.file.clone())
            .await
            .expect("a pool");
        let numbers = "SELECT (SELECT count(*) FROM payments), (SELECT balance FROM accounts WHERE name = 'alice')";
        let numbers = sqlx::query_as(numbers).fetch_one(&pool).await;
        numbers.expect("numbers")
    }
}

fn signature(secret: &[u8], time: u64, event: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length");
    mac.update(format!("{time}.{event}").as_bytes());
    let bytes = mac.finalize().into_bytes();
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={time},v1={digits}")
}

#[allow(
    clippy::disallowed_methods,
    reason = "what a sender signs is its own time"
)]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a time after 1970").as_secs()
}
