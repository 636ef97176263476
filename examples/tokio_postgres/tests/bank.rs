use super::{
    Database,
    support::{Answer, send},
};
use axum::{Router, body::Body};
use http::Request;

/// The example, over a new database.
pub(super) struct Bank {
    pub(super) app: Router,
    pub(super) database: Database,
}

impl Bank {
    /// None if there is no Postgres on this machine.
    pub(super) async fn open() -> Option<Self> {
        let database = Database::new().await?;
        let app = crate::app(database.config()).await.expect("the example");
        Some(Self { app, database })
    }

    pub(super) async fn transfer(&self, key: &str, to: &str, amount: u32) -> Answer {
        send(&self.app, request(key, ["alice", to], amount)).await
    }

    /// The balance of alice and bob, how many transfers there are, and how many records.
    pub(super) async fn books(&self) -> [i64; 4] {
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

    /// How often the handler got as far as to insert: each run takes a number, also one that is rolled back.
    pub(super) async fn runs(&self) -> i64 {
        let last = "SELECT coalesce(pg_sequence_last_value('transfers_id_seq'), 0)";
        self.database.number(last).await
    }
}

pub(super) fn request(key: &str, [from, to]: [&str; 2], amount: u32) -> Request<Body> {
    let order = format!(r#"{{"from":"{from}","to":"{to}","amount":{amount}}}"#);
    Request::post("/transfers")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Body::from(order))
        .expect("a request")
}
