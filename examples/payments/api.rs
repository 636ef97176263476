use std::time::Duration;

use axum::{
    Extension, Router,
    extract::{Path, State},
    http::{StatusCode, header::LOCATION},
    middleware,
    response::{IntoResponse, Json as JsonBody},
    routing::{get, post},
};
use sqlx::Pool;
use tokio::time::sleep;
use tower_idempotency::{IdempotencyContext, IdempotencyLayer};
use uuid::Uuid;

use crate::{
    auth::{Account, authenticate},
    charge::{Charge, ChargeBy},
    ledger::Ledger,
    order::{Card, Order},
    problem::{Json, Problem},
    refund::refund,
    transaction::Transaction,
};

/// The layer that is added later is the outer one: who calls is known before the key is looked at.
pub(crate) fn router<DB: Ledger>(pool: Pool<DB>, idempotency: IdempotencyLayer) -> Router {
    Router::new()
        .route("/charges", post(charge::<DB>).get(charges::<DB>))
        .route("/charges/{id}", get(charge_by_id::<DB>))
        .route("/refunds", post(refund::<DB>))
        .route_layer(idempotency)
        .layer(middleware::from_fn(authenticate))
        .with_state(pool)
}

/// What goes through `tx` commits together with the answer and its key, or not at all (on a lease store: by itself). A real card
/// network takes no part in that: give it `context.derive_key("card-network")`, the same for every attempt, as its own key.
async fn charge<DB: Ledger>(
    Extension(account): Extension<Account>,
    context: IdempotencyContext,
    mut tx: Transaction<DB>,
    Json(order): Json<Order>,
) -> Result<impl IntoResponse, Problem> {
    let key = context.key().as_str();
    // A run that died may have charged. That is looked for first: whatever else is answered must not free the key.
    if context.is_takeover()
        && let Some(charge) = DB::charge(&mut tx, &account.0, ChargeBy::Key(key)).await?
    {
        return Ok(created(charge));
    }
    match order.card {
        Card::Declined => return Err(Problem::card_declined()),
        Card::Slow => sleep(Duration::from_secs(2)).await,
        Card::Visa | Card::Error | Card::Panic => {}
    }
    let charge = Charge {
        id: Uuid::new_v4().to_string(),
        amount: order.amount.get().into(),
        currency: order.currency.as_str().to_owned(),
        account: account.0,
    };
    DB::insert_charge(&mut tx, &charge, key).await?;
    fail_if_told(order.card)?;
    tx.commit(&context).await?;
    Ok(created(charge))
}

fn created(charge: Charge) -> impl IntoResponse {
    let location = format!("/charges/{}", charge.id);
    (
        StatusCode::CREATED,
        [(LOCATION, location)],
        JsonBody(charge),
    )
}

/// Whatever fails after the insert takes the insert with it.
#[expect(clippy::panic, reason = "it is what this card is for")]
fn fail_if_told(card: Card) -> Result<(), Problem> {
    match card {
        Card::Error => Err(Problem::internal("the card asked for an error")),
        Card::Panic => panic!("the card asked for a panic"),
        Card::Visa | Card::Slow | Card::Declined => Ok(()),
    }
}

async fn charges<DB: Ledger>(
    Extension(account): Extension<Account>,
    State(pool): State<Pool<DB>>,
) -> Result<JsonBody<Vec<Charge>>, Problem> {
    let mut connection = pool.acquire().await?;
    Ok(JsonBody(DB::charges(&mut connection, &account.0).await?))
}

async fn charge_by_id<DB: Ledger>(
    Extension(account): Extension<Account>,
    State(pool): State<Pool<DB>>,
    Path(id): Path<String>,
) -> Result<JsonBody<Charge>, Problem> {
    let mut connection = pool.acquire().await?;
    let charge = DB::charge(&mut connection, &account.0, ChargeBy::Id(&id)).await?;
    charge.map(JsonBody).ok_or_else(Problem::no_such_charge)
}
