use axum::{Router, body::Body};
use http::{Request, StatusCode};
use tokio::task::JoinSet;

use super::{
    Database,
    support::{Answer, send},
};

struct Bank {
    app: Router,
    database: Database,
}

impl Bank {
    async fn open() -> Option<Self> {
        let database = Database::new().await?;
        let app = crate::app(database.config()).await.expect("the example");
        Some(Self { app, database })
    }

    async fn transfer(&self, key: &str, to: &str, amount: u32) -> Answer {
        let request = request(key, to, amount);
        send(&self.app, request).await
    }

    /// The balance of alice and bob, how many transfers there are, and how many records.
    async fn books(&self) -> [i64; 4] {
        let mut books = [0; 4];
        for (number, query) in books.iter_mut().zip([
            "SELECT balance FROM accounts WHERE name = 'alice'",
            "SELECT balance FROM accounts WHERE name = 'bob'",
            "SELECT count(*) FROM transfers",
            "SELECT count(*) FROM idempotency",
        ]) {
            *number = self.database.number(query).await;
        }
        books
    }

    /// How often the handler ran: each run takes a number, also one that is rolled back.
    async fn runs(&self) -> i64 {
        let last = "SELECT coalesce(pg_sequence_last_value('transfers_id_seq'), 0)";
        self.database.number(last).await
    }
}

fn request(key: &str, to: &str, amount: u32) -> Request<Body> {
    let order = format!(r#"{{"from":"alice","to":"{to}","amount":{amount}}}"#);
    Request::post("/transfers")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Body::from(order))
        .expect("a request")
}

#[tokio::test]
async fn a_repeated_transfer_is_made_once_and_its_answer_replayed() {
    let Some(bank) = Bank::open().await else {
        return;
    };
    let first = bank.transfer("k", "bob", 70).await;
    let again = bank.transfer("k", "bob", 70).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let transfer = r#"{"id":1,"from":"alice","to":"bob","amount":70}"#;
    assert_eq!(first.text(), transfer);
    assert!(again.is_replay());
    assert_eq!(again.text(), transfer);
    assert_eq!(bank.books().await, [30, 70, 1, 1]);
    assert_eq!(bank.runs().await, 1);

    let other = bank.transfer("k", "bob", 7).await;
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(bank.runs().await, 1);
}

#[tokio::test]
async fn many_transfers_with_one_key_at_once_are_one() {
    let Some(bank) = Bank::open().await else {
        return;
    };
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let app = bank.app.clone();
        clients.spawn(async move { send(&app, request("k", "bob", 1)).await });
    }
    for answer in clients.join_all().await {
        let created = answer.status() == StatusCode::CREATED;
        assert!(created || answer.status() == StatusCode::CONFLICT);
    }
    assert!(bank.transfer("k", "bob", 1).await.is_replay());
    assert_eq!(bank.books().await, [99, 1, 1, 1]);
    assert_eq!(bank.runs().await, 1);
}

#[tokio::test]
async fn a_refused_transfer_leaves_nothing_and_may_be_asked_for_again() {
    let Some(bank) = Bank::open().await else {
        return;
    };
    for (key, to, amount) in [("a", "bob", 101), ("b", "carol", 1), ("a", "bob", 101)] {
        let refused = bank.transfer(key, to, amount).await;
        assert_eq!(refused.status(), StatusCode::CONFLICT);
        assert_eq!(refused.rejection(), None, "it is the handler's own answer");
        assert_eq!(bank.books().await, [100, 0, 0, 0]);
    }
    assert_eq!(bank.runs().await, 3);

    let deposit = "UPDATE accounts SET balance = 101 WHERE name = 'alice'";
    let deposited = bank.database.connect().await.execute(deposit, &[]).await;
    deposited.expect("a deposit");
    let granted = bank.transfer("a", "bob", 101).await;
    assert_eq!(granted.status(), StatusCode::CREATED);
    assert_eq!(bank.books().await, [0, 101, 1, 1]);
}
