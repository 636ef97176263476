//! What a handler writes through `Tx` commits with an OK, wherever that is told, and is rolled back with any other status.
//! Rows are read through a second pool.

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use sqlx::{Sqlite, SqlitePool, sqlite::SqliteConnectOptions};
use tempfile::TempDir;
use tonic::{Code, metadata::AsciiMetadataValue, service::Routes};
use tower::{Layer, service_fn};
use tower_idempotency::{
    GrpcStatus, IdempotencyLayer, RequestBody, ResponsePolicy, ScopeBy, Tx, Verdict,
    sqlite::TransactionStore,
};

use crate::{
    is_replay, is_unary,
    payments::{ChargeRequest, payments_client::PaymentsClient, payments_server::PaymentsServer},
    server::Server,
    service::Service,
    support::{
        Body, Runs,
        body::{Script, Step},
        database::{Database, End},
        handler::{answering, layer},
        send,
    },
};

struct Bank {
    file: SqliteConnectOptions,
    _directory: TempDir,
}

impl Bank {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = SqliteConnectOptions::new()
            .filename(directory.path().join("bank.db"))
            .create_if_missing(true);
        let bank = Self {
            file,
            _directory: directory,
        };
        let charges = "CREATE TABLE charges
            (id INTEGER PRIMARY KEY, account TEXT NOT NULL, amount INTEGER NOT NULL, currency TEXT NOT NULL)";
        let created = sqlx::query(charges).execute(&bank.pool().await).await;
        created.expect("a table");
        bank
    }

    async fn pool(&self) -> SqlitePool {
        let pool = SqlitePool::connect_with(self.file.clone()).await;
        pool.expect("a pool")
    }

    async fn store(&self) -> TransactionStore {
        let store = TransactionStore::new(self.pool().await);
        store.migrate().await.expect("a table");
        store
    }

    async fn charges(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM charges");
        count.fetch_one(&self.pool().await).await.expect("a count")
    }
}

fn charge(key: &'static str, card: &str) -> tonic::Request<ChargeRequest> {
    let mut request = tonic::Request::new(ChargeRequest {
        amount: 1000,
        currency: "eur".into(),
        card: card.into(),
    });
    let metadata = request.metadata_mut();
    metadata.insert("idempotency-key", AsciiMetadataValue::from_static(key));
    metadata.insert("x-account", AsciiMetadataValue::from_static("alice"));
    request
}

#[tokio::test]
async fn a_charge_commits_with_its_reply_and_a_declined_one_leaves_nothing() {
    let bank = Bank::new().await;
    let account = ScopeBy::trusted_header(HeaderName::from_static("x-account"));
    let layer = IdempotencyLayer::new(bank.store().await, account)
        .require_key()
        .with_grpc_unary(|path| path == "/payments.v1.Payments/Charge");
    let payments = PaymentsServer::new(Service::new(bank.pool().await));
    let server = Server::serve(layer, Routes::new(payments)).await;
    let mut client = PaymentsClient::new(server.channel().await);

    for _ in 0..2 {
        let declined = client.charge(charge("k", "tok_declined")).await;
        let declined = declined.expect_err("declined");
        assert_eq!(declined.code(), Code::FailedPrecondition);
        assert_eq!(crate::code(&declined), None);
    }
    assert_eq!(bank.charges().await, 0);

    let first = client.charge(charge("k", "tok_visa")).await;
    let again = client.charge(charge("k", "tok_visa")).await;
    let (first, again) = (first.expect("a reply"), again.expect("a reply"));
    assert_eq!(again.get_ref(), first.get_ref());
    assert!(is_replay(&again) && !is_replay(&first));
    assert_eq!(bank.charges().await, 1);
}

/// A reply whose status is in the trailers.
fn told(status: &'static str) -> Response<Script> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    let steps = [Step::Data("message"), Step::Trailers(trailers)];
    Response::new(Script::new(steps))
}

fn call() -> Request<Body> {
    Request::post("/calls.v1.Calls/Unary")
        .header("content-type", "application/grpc")
        .header("idempotency-key", "k")
        .body(Body::from("\0\0\0\0\0"))
        .expect("a request")
}

#[tokio::test]
async fn the_status_in_the_trailers_commits_or_rolls_back() {
    for (status, charges) in [("0", 1), ("9", 0), ("13", 0), ("", 0)] {
        let bank = Bank::new().await;
        let layer = layer(bank.store().await).with_grpc_unary(is_unary);
        let service = layer.layer(service_fn(
            move |request: Request<RequestBody<Body>>| async move {
                let mut tx = Tx::<Sqlite>::take(request.extensions()).expect("a transaction");
                let insert =
                    "INSERT INTO charges (account, amount, currency) VALUES ('a', 1, 'eur')";
                sqlx::query(insert).execute(&mut *tx).await?;
                Ok::<_, sqlx::Error>(told(status))
            },
        ));
        let answer = send(&service, call()).await;
        assert_eq!(answer.trailers.expect("trailers")["grpc-status"], status);
        assert_eq!(bank.charges().await, charges, "{status}");
    }
}

#[tokio::test]
async fn a_transaction_that_lost_runs_again_for_a_call_too() {
    let (runs, database) = (Runs::default(), Database::new());
    database.lose(End::Complete, 1);
    let layer = layer(database.clone())
        .with_grpc_unary(is_unary)
        .with_transaction_retries(1);
    let service = layer.layer(answering(&runs, |_, _, _| told("0")));

    let answer = send(&service, call()).await;

    assert_eq!(answer.trailers.expect("trailers")["grpc-status"], "0");
    assert_eq!((runs.count(), database.commits()), (2, 1));
}

#[tokio::test]
async fn a_policy_can_take_a_status_for_a_conflict_and_the_last_one_is_unavailable() {
    let (runs, database) = (Runs::default(), Database::new());
    let layer = layer(database.clone())
        .with_grpc_unary(is_unary)
        .with_transaction_retries(2)
        .with_response_policy(ResponsePolicy::by(|response| {
            match response.extensions.get() {
                Some(GrpcStatus::Aborted) => Verdict::Conflict,
                _ => Verdict::Save,
            }
        }));
    let service = layer.layer(answering(&runs, |_, _, _| told("10")));

    let answer = send(&service, call()).await;

    assert_eq!(answer.head.headers["idempotency-code"], "not_committed");
    assert_eq!(answer.head.headers["grpc-status"], "14");
    assert_eq!((runs.count(), database.commits()), (3, 0));
    assert_eq!(database.open(), 0);
}
