use axum::{
    Json, Router,
    extract::{FromRef, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::json;
use sqlx::SqlitePool;
use tower_http::cors::CorsLayer;
use tower_idempotency::{IdempotencyLayer, ScopeBy, sqlite::TransactionStore};

use crate::{
    BoxError,
    charge::{ITEMS, charge, charges_of},
    hold::{self, Gate},
    problem::Problem,
    session::{Customer, authenticate, session},
};

#[derive(Clone, FromRef)]
pub(crate) struct Shop {
    pool: SqlitePool,
    gate: Gate,
}

/// The layer that is added later is the outer one: who the customer is is known before the key is looked at.
pub(crate) async fn router(pool: SqlitePool, may_hold: bool) -> Result<Router, BoxError> {
    sqlx::raw_sql(include_str!("schema.sql"))
        .execute(&pool)
        .await?;
    let store = TransactionStore::new(pool.clone());
    store.migrate().await?;
    let idempotency = IdempotencyLayer::new(store, ScopeBy::extension(|c: &Customer| c.0.clone()));
    let shop = Shop {
        pool: pool.clone(),
        gate: Gate::default(),
    };
    let mut router = Router::new()
        .route("/charges", post(charge))
        .route_layer(idempotency.require_key())
        .route_layer(middleware::from_fn_with_state(pool, authenticate))
        .route("/shop", get(show));
    if may_hold {
        router = router.merge(hold::router());
    }
    Ok(router.with_state(shop))
}

/// For a page of another origin. It goes outside of everything: a preflight request has neither a session nor a key.
pub(crate) fn cors(origin: &str) -> Result<CorsLayer, BoxError> {
    Ok(CorsLayer::new()
        .allow_origin(HeaderValue::from_str(origin)?)
        .allow_credentials(true)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([
            HeaderName::from_static("idempotency-key"),
            header::CONTENT_TYPE,
        ])
        .expose_headers([
            HeaderName::from_static("idempotent-replayed"),
            header::RETRY_AFTER,
        ]))
}

/// What the page needs to start with. Here, and not with a charge, whoever has no session gets one.
async fn show(State(pool): State<SqlitePool>, headers: HeaderMap) -> Result<Response, Problem> {
    let (customer, cookie) = session(&pool, &headers).await?;
    let charges = charges_of(&pool, &customer).await?;
    let items = ITEMS.map(|(id, name, price)| json!({ "id": id, "name": name, "price": price }));
    let shop = json!({ "customer": customer.0, "items": items, "charges": charges });
    let uncached = (header::CACHE_CONTROL, "no-store");
    Ok((cookie, [uncached], Json(shop)).into_response())
}
