use axum::{
    Json, Router,
    http::{HeaderName, StatusCode},
    routing::post,
};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::Sqlite;
use tower_idempotency::{
    IdempotencyContext, IdempotencyLayer, ScopeBy, Tx, sqlite::TransactionStore,
};

use crate::{BoxError, database, setting};

const IN_STOCK: u32 = 50;

type Failure = (StatusCode, String);

pub(crate) async fn serve() -> Result<(), BoxError> {
    let store = TransactionStore::new(database::shop().await?);
    store.migrate().await?;
    // Right where a proxy in front authenticates, sets this header, and removes it from what clients send.
    let account = ScopeBy::trusted_header(HeaderName::from_static("x-account"));
    let idempotency = IdempotencyLayer::new(store, account).require_key();
    let app = Router::new()
        .route("/orders", post(order))
        .route_layer(idempotency);
    crate::serve(app, setting("ADDR", "127.0.0.1:3000")).await
}

#[derive(Deserialize)]
struct Order {
    item: String,
    quantity: u32,
    email: String,
}

async fn order(
    context: IdempotencyContext,
    mut tx: Tx<Sqlite>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Value>), Failure> {
    let Order {
        item,
        quantity,
        email,
    } = order;
    let placed = sqlx::query("INSERT INTO orders (item, quantity) VALUES (?, ?)")
        .bind(&item)
        .bind(quantity)
        .execute(&mut *tx)
        .await
        .map_err(internal)?;
    let id = placed.last_insert_rowid();

    // Written as it will be sent. If the relay made the text, a new template would make another request under the same key of it.
    let subject = format!("Your order {id}: {quantity} × {item}");
    let mail = json!({ "to": email, "subject": subject });
    sqlx::query("INSERT INTO outbox (key, mail) VALUES (?, ?)")
        .bind(context.derive_key("receipt").to_string())
        .bind(mail.to_string())
        .execute(&mut *tx)
        .await
        .map_err(internal)?;

    // Last, to show that a 4xx takes the mail back as well.
    if quantity > IN_STOCK {
        return Err((StatusCode::CONFLICT, format!("not enough {item}")));
    }
    let order = json!({ "id": id, "item": item, "quantity": quantity });
    Ok((StatusCode::CREATED, Json(order)))
}

fn internal(error: sqlx::Error) -> Failure {
    eprintln!("shop: {error}");
    (StatusCode::INTERNAL_SERVER_ERROR, "internal error".into())
}
