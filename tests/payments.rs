//! What the payments example promises, asked for over real sockets.
#![cfg(unix)]

mod payments_app;
mod server;
mod servers;

use http::{Method, StatusCode, header};
use http_body_util::Full;
use payments_app::{App, Database, on_each_database};
use serde_json::json;
use server::{fresh_key, order};

on_each_database!(
    a_charge_is_made_once_and_its_answer_replayed,
    an_account_sees_and_refunds_its_own_charges_only,
    a_charge_is_refunded_once,
    a_failed_charge_leaves_nothing_and_frees_its_key,
    other_keys_succeed_and_reads_go_on_while_a_slow_charge_runs,
);

async fn a_charge_is_made_once_and_its_answer_replayed(database: Database) {
    let app = App::start(&database).await;
    let client = app.client();
    let key = fresh_key();

    let first = client.charge(&key, &order("tok_visa")).await;
    let again = client
        .charge(&format!("\"{key}\""), &order("tok_visa"))
        .await;
    let other = client.charge(&key, &order("tok_slow")).await;

    let id = first.id();
    assert_eq!(first.status, StatusCode::CREATED);
    assert!(!first.is_replay());
    assert_eq!(
        first.headers.get(header::LOCATION).expect("a location"),
        &format!("/charges/{id}")
    );
    assert_eq!(
        first.json(),
        json!({ "id": id, "amount": 1000, "currency": "eur", "account": "alice" })
    );
    assert!(again.is_replay());
    assert_eq!(again.lasting(), first.lasting());
    assert_eq!(
        (other.status, other.code().as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "key_reused")
    );
    assert_eq!(database.charges_under(&key).await, 1);
}

#[cfg(feature = "memory")]
#[tokio::test]
async fn the_keys_may_be_in_memory() {
    the_same_handlers_work_on_a_lease_store("memory:").await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_may_be_in_redis() {
    if let Some(redis) = tokio::task::block_in_place(servers::redis) {
        the_same_handlers_work_on_a_lease_store(redis.url()).await;
    }
}

#[cfg(any(feature = "memory", feature = "redis"))]
async fn the_same_handlers_work_on_a_lease_store(url: &str) {
    let database = Database::sqlite();
    let app = App::start_with(&database, &[("STORE_URL", url)]).await;
    let client = app.client();

    let keys = [fresh_key(), fresh_key(), fresh_key()];
    let charge = client.charge(&keys[0], &order("tok_visa")).await;
    assert_eq!(charge.status, StatusCode::CREATED);
    let refund = client.refund("alice", &keys[1], &charge.id()).await;
    assert_eq!(refund.status, StatusCode::CREATED);
    for (first, again) in [
        (&charge, client.charge(&keys[0], &order("tok_visa")).await),
        (
            &refund,
            client.refund("alice", &keys[1], &charge.id()).await,
        ),
    ] {
        assert!(again.is_replay());
        assert_eq!(again.lasting(), first.lasting());
    }
    let refused = client.refund("alice", &keys[2], &charge.id()).await;
    assert_eq!(refused.code(), "already_refunded");

    // What failed before its commit left nothing: a 4xx frees the key, and after a 5xx nobody knows.
    for (card, codes) in [
        ("tok_declined", ["card_declined", "card_declined"]),
        ("tok_error", ["internal", "outcome_unknown"]),
        ("tok_panic", ["handler_failed", "outcome_unknown"]),
    ] {
        let key = fresh_key();
        for code in codes {
            assert_eq!(client.charge(&key, &order(card)).await.code(), code);
        }
        assert_eq!(database.charges_under(&key).await, 0);
    }
    assert_eq!(database.charges().await.len(), 1);
    let records = "SELECT count(*) FROM tower_idempotency_transactions";
    assert_eq!(database.count(records).await, 0);
}

#[tokio::test]
async fn only_alice_and_bob_may_charge() {
    let database = Database::sqlite();
    let app = App::start(&database).await;
    let client = app.client();
    for authorization in [
        None,
        Some(""),
        Some("Bearer"),
        Some("Bearer mallory"),
        Some("Basic alice"),
        Some("alice"),
    ] {
        for (method, path) in [
            (Method::POST, "/charges"),
            (Method::GET, "/charges"),
            (Method::GET, "/elsewhere"),
        ] {
            let mut request = client.request(method, path).header("idempotency-key", "k");
            if let Some(value) = authorization {
                request = request.header(header::AUTHORIZATION, value);
            }
            let answer = client
                .send(request.body(Full::default()).expect("a request"))
                .await;
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (StatusCode::UNAUTHORIZED, "unauthorized"),
                "{authorization:?}"
            );
            let challenge = answer.headers.get(header::WWW_AUTHENTICATE);
            assert_eq!(challenge.expect("a challenge"), "Bearer");
        }
    }
    let bob = client
        .send(client.keyed("/charges", "bob", "k", &order("tok_visa")))
        .await;
    assert_eq!(bob.status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_charge_and_a_refund_need_a_key() {
    let database = Database::sqlite();
    let app = App::start(&database).await;
    let client = app.client();
    for path in ["/charges", "/refunds"] {
        let mut request = client.keyed(path, "alice", "k", &order("tok_visa"));
        request.headers_mut().remove("idempotency-key");
        let answer = client.send(request).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::BAD_REQUEST, "missing_key")
        );
    }
    assert_eq!(database.charges().await, []);
}

async fn an_account_sees_and_refunds_its_own_charges_only(database: Database) {
    let app = App::start(&database).await;
    let client = app.client();

    // One key, one order, two accounts: two charges.
    let alice = client.charge("k", &order("tok_visa")).await;
    let bob = client
        .send(client.keyed("/charges", "bob", "k", &order("tok_visa")))
        .await;
    let path = format!("/charges/{}", alice.id());

    assert_eq!(bob.status, StatusCode::CREATED);
    assert!(!bob.is_replay());
    assert_eq!(
        client.get("alice", "/charges").await.json(),
        json!([alice.json()])
    );
    assert_eq!(
        client.get("bob", "/charges").await.json(),
        json!([bob.json()])
    );
    assert_eq!(client.get("alice", &path).await.json(), alice.json());
    let hidden = client.get("bob", &path).await;
    assert_eq!(
        (hidden.status, hidden.code().as_str()),
        (StatusCode::NOT_FOUND, "no_such_charge")
    );
    let refused = client.refund("bob", "r", &alice.id()).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (StatusCode::NOT_FOUND, "no_such_charge")
    );
}

async fn a_charge_is_refunded_once(database: Database) {
    let app = App::start(&database).await;
    let client = app.client();
    let charge = client.charge("c", &order("tok_visa")).await.id();

    let first = client.refund("alice", "r", &charge).await;
    let again = client.refund("alice", "r", &charge).await;
    let second = client.refund("alice", "another", &charge).await;

    assert_eq!(first.status, StatusCode::CREATED);
    assert_eq!(
        first.json(),
        json!({ "id": first.id(), "charge": charge, "amount": 1000 })
    );
    assert!(again.is_replay());
    assert_eq!(again.lasting(), first.lasting());
    assert_eq!(
        (second.status, second.code().as_str()),
        (StatusCode::CONFLICT, "already_refunded")
    );
    let refunds = "SELECT count(*) FROM refunds";
    assert_eq!(database.count(refunds).await, 1);
}

async fn a_failed_charge_leaves_nothing_and_frees_its_key(database: Database) {
    let app = App::start(&database).await;
    let client = app.client();
    for (card, status, code) in [
        (
            "tok_declined",
            StatusCode::PAYMENT_REQUIRED,
            "card_declined",
        ),
        ("tok_error", StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        (
            "tok_panic",
            StatusCode::INTERNAL_SERVER_ERROR,
            "handler_failed",
        ),
    ] {
        let key = fresh_key();
        for _ in 0..2 {
            let answer = client.charge(&key, &order(card)).await;
            assert_eq!((answer.status, answer.code().as_str()), (status, code));
            assert!(!answer.is_replay());
            assert_eq!(database.charges_under(&key).await, 0, "{card}");
        }
        let other_card = client.charge(&key, &order("tok_visa")).await;
        assert_eq!(other_card.status, StatusCode::CREATED, "after {card}");
        assert_eq!(database.charges_under(&key).await, 1);
    }
}

#[tokio::test]
async fn orders_that_make_no_sense_are_problems() {
    let database = Database::sqlite();
    let app = App::start(&database).await;
    let client = app.client();
    let with_amount =
        |amount: &str| format!(r#"{{"amount":{amount},"currency":"eur","card":"tok_visa"}}"#);
    let mut orders: Vec<(String, StatusCode)> = [
        "0",
        "-1",
        "-0",
        "1.5",
        "1e3",
        "\"1000\"",
        "null",
        "[]",
        "true",
        "1e99",
        "18446744073709551617",
    ]
    .iter()
    .map(|amount| (with_amount(amount), StatusCode::UNPROCESSABLE_ENTITY))
    .collect();
    for unfit in [
        r#"{"currency":"eur","card":"tok_visa"}"#,
        r#"{"amount":1000,"currency":"xxx","card":"tok_visa"}"#,
        r#"{"amount":1000,"currency":"eur","card":"tok_gold"}"#,
        r#"{"amount":1000,"currency":"eur"}"#,
        "[]",
    ] {
        orders.push((unfit.into(), StatusCode::UNPROCESSABLE_ENTITY));
    }
    for malformed in ["", "{", r#"{"amount":1000"#, "amount=1000"] {
        orders.push((malformed.into(), StatusCode::BAD_REQUEST));
    }
    for (body, status) in orders {
        let answer = client.charge(&fresh_key(), &body).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (status, "invalid_request"),
            "{body}"
        );
    }
    let mut form = client.keyed("/charges", "alice", "k", &order("tok_visa"));
    form.headers_mut().remove(header::CONTENT_TYPE);
    let answer = client.send(form).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request")
    );
    assert_eq!(database.charges().await, []);
}

async fn other_keys_succeed_and_reads_go_on_while_a_slow_charge_runs(database: Database) {
    let app = App::start(&database).await;
    let client = app.client();
    let slow_key = fresh_key();

    let slow = client.start_slow(&slow_key).await;
    assert_eq!(client.get("alice", "/charges").await.json(), json!([]));
    let others: Vec<_> = (0..5)
        .map(|_| {
            let (client, order) = (client.clone(), order("tok_visa"));
            tokio::spawn(async move { client.charge(&fresh_key(), &order).await })
        })
        .collect();
    let read = client.get("alice", "/charges").await;
    assert_eq!(read.status, StatusCode::OK);
    let duplicate = client.charge(&slow_key, &order("tok_slow")).await;
    assert_eq!(
        duplicate.code(),
        "in_flight",
        "the slow charge was over too soon for this test"
    );

    for other in others {
        assert_eq!(other.await.expect("an answer").status, StatusCode::CREATED);
    }
    assert_eq!(slow.await.expect("an answer").status, StatusCode::CREATED);
    assert_eq!(database.charges().await.len(), 6);
}
