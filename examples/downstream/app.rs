//! The app: the keys on a lease store, since what matters happens elsewhere, and a run of unknown outcome is run again.

use std::{env, process, time::Duration};

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use reqwest::{Method, Request, Url, redirect};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::SqlitePool;
use tower_idempotency::{
    IdempotencyContext, IdempotencyLayer, ScopeBy, sqlite::LeaseStore, store::Takeover,
};
use uuid::Uuid;

use crate::{BoxError, database, failure::Failure};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS charges (
        id            TEXT    NOT NULL PRIMARY KEY,
        amount        INTEGER NOT NULL,
        authorization INTEGER NOT NULL
    ) STRICT;
";

#[derive(Clone)]
struct App {
    pool: SqlitePool,
    client: reqwest::Client,
    network: Url,
    crash: bool,
    fresh_key: bool,
    steps: bool,
}

pub(crate) async fn router(flags: &[String]) -> Result<Router, BoxError> {
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    let network = env::var("NETWORK").unwrap_or_else(|_| "http://127.0.0.1:4000".to_owned());
    let app = App {
        pool: database("app.db", SCHEMA).await?,
        // The key is for the network, not for where it may redirect to.
        client: reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .build()?,
        network: Url::parse(&network)?.join("/authorizations")?,
        crash: has("--crash"),
        fresh_key: has("--fresh-key"),
        steps: has("--steps"),
    };
    let store = LeaseStore::new(database("keys.db", "").await?);
    store.migrate().await?;
    let lease = env::var("LEASE").map_or(Ok(10.0), |seconds| seconds.parse())?;
    let idempotency = IdempotencyLayer::new(store, ScopeBy::single_tenant())
        .require_key()
        .with_takeover(Takeover::RunAgain)
        .with_lease(Duration::try_from_secs_f64(lease)?);
    Ok(Router::new()
        .route("/charges", post(charge))
        .route_layer(idempotency)
        .with_state(app))
}

#[derive(Deserialize)]
struct Order {
    amount: i64,
}

/// As the network answers.
#[derive(Deserialize)]
struct Authorization {
    id: i64,
}

async fn charge(
    State(app): State<App>,
    context: IdempotencyContext,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Value>), Failure> {
    let authorize = || app.authorize(&context, order.amount);
    let authorization: i64 = match app.steps {
        true => context.step("authorize", authorize).await?,
        false => authorize().await?,
    };
    if app.crash {
        process::abort();
    }
    // A derived name for the row as well: an earlier attempt may have got this far.
    let id = context.derive_key("charge").to_string();
    sqlx::query("INSERT INTO charges VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING")
        .bind(&id)
        .bind(order.amount)
        .bind(authorization)
        .execute(&app.pool)
        .await?;
    let charge = json!({
        "id": id, "amount": order.amount, "authorization": authorization, "attempt": context.attempt()
    });
    Ok((StatusCode::CREATED, Json(charge)))
}

impl App {
    async fn authorize(&self, context: &IdempotencyContext, amount: i64) -> Result<i64, Failure> {
        let mut request = Request::new(Method::POST, self.network.clone());
        if self.fresh_key {
            // What not to do: the network can't know that two attempts are one charge.
            let key = Uuid::new_v4().to_string().parse()?;
            request.headers_mut().insert("idempotency-key", key);
        } else {
            context.set_derived_key("card-network", request.headers_mut());
        }
        let json = "application/json".parse()?;
        request.headers_mut().insert("content-type", json);
        *request.body_mut() = Some(json!({ "amount": amount }).to_string().into());
        let response = self.client.execute(request).await?.error_for_status()?;
        let authorization: Authorization = serde_json::from_slice(&response.bytes().await?)?;
        Ok(authorization.id)
    }
}
