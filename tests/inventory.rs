//! What the inventory example promises.

#[path = "../examples/inventory.rs"]
#[allow(dead_code, reason = "its main listens on a socket")]
mod inventory;
mod support;

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use sqlx::{SqlitePool, sqlite::SqliteConnectOptions};
use support::{Answer, send};
use tempfile::TempDir;

struct Shop {
    app: Router,
    file: SqliteConnectOptions,
    _directory: TempDir,
}

impl Shop {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = SqliteConnectOptions::new()
            .filename(directory.path().join("inventory.db"))
            .create_if_missing(true);
        let pool = SqlitePool::connect_with(file.clone())
            .await
            .expect("a pool");
        let app = inventory::app(pool).await.expect("the example");
        Self {
            app,
            file,
            _directory: directory,
        }
    }

    async fn reserve(&self, key: &str, quantity: u32) -> Answer {
        let request = Request::post("/reservations")
            .header("idempotency-key", key)
            .header("content-type", "application/json")
            .body(Body::from(format!(
                r#"{{"item":"lamp","quantity":{quantity}}}"#
            )));
        send(&self.app, request.expect("a request")).await
    }

    async fn deliver(&self, quantity: u32) {
        let request = Request::post(format!("/stock/lamp/{quantity}")).body(Body::empty());
        let answer = send(&self.app, request.expect("a request")).await;
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    }

    /// What is left, and how many reservations of how many pieces there are, by a pool of the test's own.
    async fn stock(&self) -> (i64, i64, i64) {
        let pool = SqlitePool::connect_with(self.file.clone())
            .await
            .expect("a pool");
        let numbers = "SELECT (SELECT available FROM stock WHERE item = 'lamp'), count(*), coalesce(sum(quantity), 0) FROM reservations";
        sqlx::query_as(numbers)
            .fetch_one(&pool)
            .await
            .expect("numbers")
    }
}

#[tokio::test]
async fn a_repeated_reservation_takes_stock_once() {
    let shop = Shop::new().await;
    let first = shop.reserve("k", 2).await;
    let again = shop.reserve("k", 2).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
    assert_eq!(shop.stock().await, (1, 1, 2));
}

#[tokio::test]
async fn insufficient_stock_rolls_back_and_may_be_asked_for_again() {
    let shop = Shop::new().await;
    for _ in 0..2 {
        let refused = shop.reserve("k", 4).await;
        assert_eq!(refused.status(), StatusCode::CONFLICT);
        assert_eq!(refused.rejection(), None, "it is the handler's own answer");
        assert!(!refused.is_replay());
        assert_eq!(shop.stock().await, (3, 0, 0));
    }
    shop.deliver(1).await;
    let granted = shop.reserve("k", 4).await;
    assert_eq!(granted.status(), StatusCode::CREATED);
    assert_eq!(shop.stock().await, (0, 1, 4));
    assert!(shop.reserve("k", 4).await.is_replay());
}

#[tokio::test]
async fn of_two_clients_for_the_last_item_one_wins() {
    let shop = Shop::new().await;
    let first = shop.reserve("first", 2).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let (one, other) = tokio::join!(shop.reserve("one", 1), shop.reserve("other", 1));
    let mut statuses = [one.status(), other.status()];
    statuses.sort();
    assert_eq!(statuses, [StatusCode::CREATED, StatusCode::CONFLICT]);
    assert_eq!(shop.stock().await, (0, 2, 3));

    // The loser may come back.
    let loser = if one.status() == StatusCode::CONFLICT {
        "one"
    } else {
        "other"
    };
    assert_eq!(shop.reserve(loser, 1).await.status(), StatusCode::CONFLICT);
    shop.deliver(1).await;
    assert_eq!(shop.reserve(loser, 1).await.status(), StatusCode::CREATED);
    assert_eq!(shop.stock().await, (0, 3, 4));
}
