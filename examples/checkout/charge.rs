use std::collections::BTreeMap;

use axum::{
    Extension, Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{Sqlite, SqlitePool};
use tower_idempotency::{IdempotencyContext, Tx};
use uuid::Uuid;

use crate::{hold::Gate, problem::Problem, session::Customer};

/// Their names and what they cost, in cents.
pub(crate) const ITEMS: [(&str, &str, i64); 3] = [
    ("beans", "Coffee beans, 250 g", 950),
    ("mug", "Enamel mug", 1400),
    ("filters", "Paper filters", 450),
];

/// How many there are of each item.
type Cart = BTreeMap<String, u32>;

/// The customer and the amount are those that the page shows: nobody pays for somebody else, or another price.
#[derive(Deserialize)]
pub(crate) struct Order {
    customer: String,
    items: Cart,
    amount: i64,
}

#[derive(Serialize)]
pub(crate) struct Charge {
    id: String,
    amount: i64,
}

/// A refusal rolls back and frees the key. That it came to one says that nothing was charged under the key before: that would be
/// replayed. For another customer it says nothing, since the key is another one then.
pub(crate) async fn charge(
    Extension(customer): Extension<Customer>,
    context: IdempotencyContext,
    State(gate): State<Gate>,
    mut tx: Tx<Sqlite>,
    Json(order): Json<Order>,
) -> Result<impl IntoResponse, Problem> {
    if order.customer != customer.0 {
        return Err(Problem::ANOTHER_SESSION);
    }
    if price(&order.items) != Some(order.amount) {
        return Err(Problem::PRICE_CHANGED);
    }
    let charge = Charge {
        id: Uuid::new_v4().to_string(),
        amount: order.amount,
    };
    let insert =
        "INSERT INTO charges (id, idempotency_key, customer, items, amount) VALUES (?, ?, ?, ?, ?)";
    sqlx::query(insert)
        .bind(&charge.id)
        .bind(context.key().as_str())
        .bind(&customer.0)
        .bind(json!(order.items).to_string())
        .bind(charge.amount)
        .execute(&mut *tx)
        .await?;
    gate.pass().await;
    let uncached = [(header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::CREATED, uncached, Json(charge)))
}

pub(crate) async fn charges_of(
    pool: &SqlitePool,
    customer: &Customer,
) -> Result<Vec<Charge>, sqlx::Error> {
    let select = "SELECT id, amount FROM charges WHERE customer = ? ORDER BY number";
    let rows = sqlx::query_as(select)
        .bind(&customer.0)
        .fetch_all(pool)
        .await?;
    let charges = rows.into_iter().map(|(id, amount)| Charge { id, amount });
    Ok(charges.collect())
}

/// None for what is not sold here, and for nothing at all.
fn price(cart: &Cart) -> Option<i64> {
    let price_of = |name: &str| ITEMS.iter().find(|(id, ..)| *id == name);
    let prices = cart.iter().map(|(name, count)| {
        let (_, _, price) = price_of(name)?;
        Some(price * i64::from(*count))
    });
    let sum: Option<i64> = prices.sum();
    sum.filter(|sum| *sum > 0)
}
