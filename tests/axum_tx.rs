//! `Tx` as an axum extractor: what a handler gets, and what it is told if it gets none.

mod support;

use axum::{Router, body::Body, routing::post};
use http::{Request, StatusCode};
use sqlx::{Sqlite, SqlitePool, sqlite::SqlitePoolOptions};
use support::{Answer, send};
use tower_idempotency::{IdempotencyLayer, MemoryStore, ScopeBy, Tx, sqlite::TransactionStore};

async fn pool() -> SqlitePool {
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect("sqlite::memory:")
        .await
        .expect("a pool");
    sqlx::raw_sql("CREATE TABLE work (id INTEGER PRIMARY KEY) STRICT")
        .execute(&pool)
        .await
        .expect("a table");
    pool
}

async fn app(pool: &SqlitePool) -> Router {
    let store = TransactionStore::new(pool.clone());
    store.migrate().await.expect("a migrated store");
    routes().route_layer(IdempotencyLayer::new(store, ScopeBy::single_tenant()))
}

fn routes() -> Router {
    Router::new()
        .route("/tx", post(async |mut tx: Tx<Sqlite>| work(&mut tx).await))
        .route("/option", post(option))
        .route(
            "/twice",
            post(async |_one: Tx<Sqlite>, _other: Tx<Sqlite>| "not reached"),
        )
        .route(
            "/twice-optional",
            post(async |_one: Tx<Sqlite>, _other: Option<Tx<Sqlite>>| "not reached"),
        )
}

async fn option(tx: Option<Tx<Sqlite>>) -> &'static str {
    match tx {
        Some(mut tx) => work(&mut tx).await,
        None => "no transaction",
    }
}

async fn work(tx: &mut Tx<Sqlite>) -> &'static str {
    sqlx::query("INSERT INTO work DEFAULT VALUES")
        .execute(&mut **tx)
        .await
        .expect("a row");
    "worked"
}

async fn ask(app: &Router, path: &str, key: Option<&str>) -> Answer {
    let mut request = Request::post(path);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    send(app, request.body(Body::empty()).expect("a request")).await
}

async fn rows(pool: &SqlitePool) -> i64 {
    let rows = sqlx::query_scalar("SELECT count(*) FROM work");
    rows.fetch_one(pool).await.expect("a number")
}

#[tokio::test]
async fn a_keyed_handler_writes_once_through_its_tx() {
    let pool = pool().await;
    let app = app(&pool).await;
    for (path, expected) in [("/tx", 1), ("/option", 2)] {
        for replay in [false, true] {
            let answer = ask(&app, path, Some(path)).await;
            assert_eq!(
                (answer.status(), answer.text(), answer.is_replay()),
                (StatusCode::OK, "worked", replay)
            );
            assert_eq!(rows(&pool).await, expected);
        }
    }
}

#[tokio::test]
async fn without_a_transaction_tx_is_a_500_that_names_the_cause_and_its_option_is_none() {
    let pool = pool().await;
    let transactions = app(&pool).await;
    let leases = routes().route_layer(IdempotencyLayer::new(
        MemoryStore::new(),
        ScopeBy::single_tenant(),
    ));
    for (app, key) in [
        (&transactions, None),
        (&leases, Some("k")),
        (&routes(), Some("k")),
    ] {
        let refused = ask(app, "/tx", key).await;
        assert_eq!(refused.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(
            refused.text().contains("no idempotency key"),
            "{}",
            refused.text()
        );
        let option = ask(app, "/option", key.map(|_| "another")).await;
        assert_eq!(
            (option.status(), option.text()),
            (StatusCode::OK, "no transaction")
        );
    }
}

#[tokio::test]
async fn a_tx_taken_twice_is_a_500_that_says_so_and_the_key_is_free_again() {
    let pool = pool().await;
    let app = app(&pool).await;
    for path in ["/twice", "/twice-optional"] {
        for _ in 0..2 {
            let refused = ask(&app, path, Some(path)).await;
            assert_eq!(refused.status(), StatusCode::INTERNAL_SERVER_ERROR);
            assert!(
                refused.text().contains("taken before"),
                "{}",
                refused.text()
            );
            assert!(!refused.is_replay());
        }
    }
    assert_eq!(ask(&app, "/tx", Some("/tx")).await.text(), "worked");
    assert_eq!(rows(&pool).await, 1);
}
