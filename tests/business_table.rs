//! What the business table example promises, and the statement for Postgres in `docs/patterns.md`.

#[path = "../examples/business_table.rs"]
#[allow(dead_code, reason = "its main listens on a socket")]
mod business_table;
#[cfg(feature = "postgres")]
mod servers;
mod support;

use axum::{Router, body::Body};
use http::{HeaderValue, Request, StatusCode};
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
            .filename(directory.path().join("orders.db"))
            .create_if_missing(true);
        let pool = SqlitePool::connect_with(file.clone())
            .await
            .expect("a pool");
        let app = business_table::app(pool).await.expect("the example");
        Self {
            app,
            file,
            _directory: directory,
        }
    }

    async fn order(&self, account: &str, keys: &[&str], quantity: u32) -> Answer {
        let mut request = Request::post("/orders").header("content-type", "application/json");
        if !account.is_empty() {
            request = request.header("x-account", account);
        }
        for key in keys {
            request = request.header(
                "idempotency-key",
                HeaderValue::from_str(key).expect("a key"),
            );
        }
        let order = format!(r#"{{"item":"lamp","quantity":{quantity}}}"#);
        let request = request.body(Body::from(order));
        send(&self.app, request.expect("a request")).await
    }

    async fn pool(&self) -> SqlitePool {
        SqlitePool::connect_with(self.file.clone())
            .await
            .expect("a pool")
    }

    /// How many there are, by a pool of the test's own.
    async fn orders(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM orders");
        count.fetch_one(&self.pool().await).await.expect("a number")
    }
}

#[tokio::test]
async fn a_repeated_order_is_placed_once_and_answered_from_its_row() {
    let shop = Shop::new().await;
    let first = shop.order("alice", &["k"], 2).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    assert_eq!(first.text(), r#"{"id":1,"item":"lamp","quantity":2}"#);
    assert!(!first.is_replay());
    for key in ["k", "\"k\""] {
        let again = shop.order("alice", &[key], 2).await;
        assert_eq!(again.status(), StatusCode::CREATED);
        assert!(again.is_replay());
        assert_eq!(again.body, first.body);
    }
    assert_eq!(shop.orders().await, 1);
}

#[tokio::test]
async fn another_order_under_the_same_key_is_refused_and_another_accounts_is_not() {
    let shop = Shop::new().await;
    shop.order("alice", &["k"], 2).await;
    let other = shop.order("alice", &["k"], 3).await;
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(other.text(), "this key has made another order");
    let bobs = shop.order("bob", &["k"], 3).await;
    assert_eq!(bobs.status(), StatusCode::CREATED);
    assert!(!bobs.is_replay());
    assert_eq!(shop.orders().await, 2);
}

#[tokio::test]
async fn an_order_without_one_key_or_an_account_is_not_placed() {
    let shop = Shop::new().await;
    for keys in [&[][..], &[""], &["a", "a"], &["\"a"], &["a b"]] {
        let refused = shop.order("alice", keys, 2).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{keys:?}");
    }
    assert_eq!(
        shop.order("", &["k"], 2).await.status(),
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(shop.orders().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_twenty_orders_at_once_under_one_key_one_is_placed_and_all_are_told_of_it() {
    let shop = std::sync::Arc::new(Shop::new().await);
    let orders: Vec<_> = (0..20)
        .map(|_| {
            let shop = std::sync::Arc::clone(&shop);
            tokio::spawn(async move { shop.order("alice", &["k"], 2).await })
        })
        .collect();
    let mut placed = 0;
    for order in orders {
        let order = order.await.expect("an answer");
        assert_eq!(order.status(), StatusCode::CREATED);
        assert_eq!(order.text(), r#"{"id":1,"item":"lamp","quantity":2}"#);
        placed += usize::from(!order.is_replay());
    }
    assert_eq!((placed, shop.orders().await), (1, 1));
}

#[tokio::test]
async fn an_order_that_another_one_came_before_after_it_had_looked_is_answered_from_the_others_row()
{
    let shop = Shop::new().await;
    // What another process does between the two statements, in the place where nothing can come in between.
    let other = "CREATE TRIGGER other BEFORE INSERT ON orders BEGIN
        INSERT INTO orders (account, client_idempotency_key, item, quantity)
        VALUES (NEW.account, NEW.client_idempotency_key, 'lamp', 7);
    END";
    sqlx::query(other)
        .execute(&shop.pool().await)
        .await
        .expect("a trigger");
    let same = shop.order("alice", &["k"], 7).await;
    assert_eq!(same.status(), StatusCode::CREATED);
    assert!(same.is_replay());
    let different = shop.order("alice", &["another"], 2).await;
    assert_eq!(different.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(shop.orders().await, 2);
}

/// The document's statement, on its own and under load.
#[cfg(feature = "postgres")]
mod on_postgres {
    use std::{sync::Arc, time::Duration};

    use sqlx::{AssertSqlSafe, PgPool, postgres::PgPoolOptions};
    use tokio::{
        sync::Barrier,
        time::{interval, timeout},
    };

    const LIMIT: Duration = Duration::from_secs(60);

    async fn shop() -> Option<PgPool> {
        let url = crate::servers::postgres()?.database().await;
        let pool = PgPoolOptions::new().max_connections(16).connect(&url).await;
        let pool = pool.expect("a pool");
        let schema = "CREATE TABLE orders (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account TEXT NOT NULL, client_idempotency_key TEXT NOT NULL,
            item TEXT NOT NULL, quantity INT NOT NULL, UNIQUE (account, client_idempotency_key))";
        sqlx::query(schema).execute(&pool).await.expect("a table");
        Some(pool)
    }

    fn statement() -> AssertSqlSafe<&'static str> {
        let document = include_str!("../docs/patterns.md");
        let (_, sql) = document.split_once("```sql\n").expect("a statement");
        let (sql, _) = sql.split_once("```").expect("its end");
        AssertSqlSafe(sql)
    }

    async fn number(pool: &PgPool, sql: &'static str) -> i64 {
        let number = sqlx::query_scalar(sql).fetch_one(pool).await;
        number.expect("a number")
    }

    async fn place(pool: &PgPool, key: &str) -> Option<(i64, bool)> {
        try_place(pool, key).await.expect("an answer")
    }

    /// The order's id, and whether it is new; none if it is to be asked for again.
    async fn try_place(pool: &PgPool, key: &str) -> Result<Option<(i64, bool)>, sqlx::Error> {
        let place = sqlx::query_as(statement())
            .bind("alice")
            .bind(key)
            .bind("lamp")
            .bind(2);
        let placed: Option<(i64, String, i32, bool)> = place.fetch_optional(pool).await?;
        Ok(placed.map(|(id, _, _, is_new)| (id, is_new)))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_sixteen_callers_one_places_the_order_and_all_get_it() {
        let Some(pool) = shop().await else { return };
        for round in 0..20 {
            let barrier = Arc::new(Barrier::new(16));
            let callers: Vec<_> = (0..16)
                .map(|_| {
                    let (pool, barrier) = (pool.clone(), Arc::clone(&barrier));
                    tokio::spawn(async move {
                        barrier.wait().await;
                        loop {
                            if let Some(placed) = place(&pool, &format!("key {round}")).await {
                                return placed;
                            }
                        }
                    })
                })
                .collect();
            let mut placed = Vec::new();
            for caller in callers {
                placed.push(caller.await.expect("an order"));
            }
            assert_eq!(placed.iter().filter(|(_, is_new)| *is_new).count(), 1);
            assert!(
                placed.iter().all(|(id, _)| *id == placed[0].0),
                "{placed:?}"
            );
        }
        assert_eq!(number(&pool, "SELECT count(*) FROM orders").await, 20);
    }

    #[tokio::test]
    async fn it_finds_no_row_where_another_order_commits_while_it_waits_and_then_that_order() {
        let Some(pool) = shop().await else { return };
        assert_eq!(overtaken(&pool, &pool).await.expect("an answer"), None);
        assert_eq!(place(&pool, "k").await, Some((1, false)));
    }

    #[tokio::test]
    async fn above_read_committed_it_fails_there_and_finds_that_order_when_it_is_repeated() {
        let Some(pool) = shop().await else { return };
        let options = pool.connect_options().as_ref().clone();
        for level in ["repeatable read", "serializable"] {
            sqlx::query("DELETE FROM orders")
                .execute(&pool)
                .await
                .expect("no orders");
            let options = options
                .clone()
                .options([("default_transaction_isolation", level)]);
            let strict = PgPool::connect_with(options).await.expect("a pool");
            let error = overtaken(&pool, &strict).await.expect_err("a failure");
            let code = error.as_database_error().and_then(|error| error.code());
            assert_eq!(code.as_deref(), Some("40001"), "{level}");
            let (_, is_new) = place(&strict, "k").await.expect("an order");
            assert!(!is_new);
        }
    }

    /// What the statement finds, by one pool, where another order with its key commits while it waits.
    async fn overtaken(other: &PgPool, pool: &PgPool) -> Result<Option<(i64, bool)>, sqlx::Error> {
        let mut transaction = other.begin().await.expect("a transaction");
        let insert = "INSERT INTO orders (account, client_idempotency_key, item, quantity) VALUES ('alice', 'k', 'lamp', 2)";
        sqlx::query(insert)
            .execute(&mut *transaction)
            .await
            .expect("an order");
        let waiting = tokio::spawn({
            let pool = pool.clone();
            async move { try_place(&pool, "k").await }
        });
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let mut pause = interval(Duration::from_millis(10));
        timeout(LIMIT, async {
            while number(other, waits).await != 1 {
                pause.tick().await;
            }
        })
        .await
        .expect("it waits for the other order");
        transaction.commit().await.expect("a commit");
        waiting.await.expect("an answer")
    }

    #[tokio::test]
    async fn a_retry_writes_nothing_and_locks_nothing() {
        let Some(pool) = shop().await else { return };
        assert_eq!(place(&pool, "k").await, Some((1, true)));
        let version = "SELECT ctid::text || ' ' || xmin::text || ' ' || xmax::text FROM orders";
        let version = || async {
            let version = sqlx::query_scalar(version).fetch_one(&pool).await;
            let version: String = version.expect("a version");
            version
        };
        let before = version().await;
        assert_eq!(place(&pool, "k").await, Some((1, false)));
        assert_eq!(version().await, before);
    }
}
