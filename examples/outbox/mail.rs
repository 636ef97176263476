//! A mail service, in a process and with a database of its own. Real ones deduplicate as it does, if they take a key.

use axum::{Router, extract::State, http::StatusCode, routing::get};
use sqlx::{Sqlite, SqlitePool};
use tower_idempotency::{IdempotencyLayer, ScopeBy, Tx, sqlite::TransactionStore};

use crate::{BoxError, database, setting};

pub(crate) async fn serve() -> Result<(), BoxError> {
    let pool = database::mail().await?;
    let store = TransactionStore::new(pool.clone());
    store.migrate().await?;
    // The shop is its only client.
    let idempotency = IdempotencyLayer::new(store, ScopeBy::single_tenant()).require_key();
    let app = Router::new()
        .route("/mails", get(sent).post(send))
        .route_layer(idempotency)
        .with_state(pool);
    crate::serve(app, setting("MAIL_ADDR", "127.0.0.1:3001")).await
}

/// To send is to write it down here.
async fn send(mut tx: Tx<Sqlite>, mail: String) -> Result<StatusCode, StatusCode> {
    let send = sqlx::query("INSERT INTO sent (mail) VALUES (?)").bind(mail);
    send.execute(&mut *tx).await.map_err(internal)?;
    Ok(StatusCode::ACCEPTED)
}

async fn sent(State(pool): State<SqlitePool>) -> Result<String, StatusCode> {
    let sent = sqlx::query_scalar("SELECT mail FROM sent ORDER BY id");
    let sent: Vec<String> = sent.fetch_all(&pool).await.map_err(internal)?;
    Ok(sent.iter().map(|mail| format!("{mail}\n")).collect())
}

fn internal(error: sqlx::Error) -> StatusCode {
    eprintln!("mail: {error}");
    StatusCode::INTERNAL_SERVER_ERROR
}
