use std::str::FromStr;

use http::HeaderName;
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tokio::net::TcpListener;
use tonic::{
    service::LayerExt,
    transport::server::{Server, TcpIncoming},
};
use tower_idempotency::{IdempotencyLayer, ScopeBy, sqlite::TransactionStore};

use crate::{BoxError, payments::payments_server::PaymentsServer, service::Service};

pub(crate) async fn serve(address: &str, database: &str) -> Result<(), BoxError> {
    let options = SqliteConnectOptions::from_str(database)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS charges
            (id INTEGER PRIMARY KEY, account TEXT NOT NULL, amount INTEGER NOT NULL, currency TEXT NOT NULL)",
    )
    .execute(&pool)
    .await?;
    let store = TransactionStore::new(pool.clone());
    store.migrate().await?;

    // Right where a proxy in front sets this header, and removes it from what clients send.
    let account = ScopeBy::trusted_header(HeaderName::from_static("x-account"));
    let idempotency = IdempotencyLayer::new(store, account)
        .require_key()
        .with_grpc_unary(|path| path == "/payments.v1.Payments/Charge");
    // Around this service; `Server::builder().layer(idempotency)` would be around all of them.
    let payments = idempotency.named_layer(PaymentsServer::new(Service::new(pool)));

    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Server::builder()
        .add_service(payments)
        .serve_with_incoming(TcpIncoming::from(listener))
        .await?;
    Ok(())
}
