use axum::{
    extract::{Request, State},
    http::{HeaderMap, header},
    middleware::Next,
    response::{AppendHeaders, IntoResponseParts, Response},
};
use sqlx::SqlitePool;
use uuid::Uuid;

use crate::problem::Problem;

/// Who buys: the scope of all keys. A session tells who that is, and is no scope itself, since one customer has several in time.
#[derive(Clone)]
pub(crate) struct Customer(pub(crate) String);

/// Sent with requests of pages of this site only. Where there is TLS, `Secure` and a name with `__Host-` belong to it. It outlives
/// the keys: a purchase that is retried must still be the same customer's.
const COOKIE: &str = "HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000";

/// A middleware, because the idempotency layer needs the customer. It makes no session: a retry whose cookie is gone would become
/// the first request of somebody else.
pub(crate) async fn authenticate(
    State(pool): State<SqlitePool>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let customer = customer(&pool, request.headers()).await?;
    let customer = customer.ok_or(Problem::NO_SESSION)?;
    request.extensions_mut().insert(customer);
    Ok(next.run(request).await)
}

/// Whose session this is; or a new one, for a new customer, with its cookie.
pub(crate) async fn session(
    pool: &SqlitePool,
    headers: &HeaderMap,
) -> Result<(Customer, impl IntoResponseParts + use<>), Problem> {
    if let Some(customer) = customer(pool, headers).await? {
        return Ok((customer, AppendHeaders(None)));
    }
    let [token, customer] = [(); 2].map(|()| Uuid::new_v4().to_string());
    sqlx::query("INSERT INTO sessions (token, customer) VALUES (?, ?)")
        .bind(&token)
        .bind(&customer)
        .execute(pool)
        .await?;
    let cookie = (header::SET_COOKIE, format!("session={token}; {COOKIE}"));
    Ok((Customer(customer), AppendHeaders(Some(cookie))))
}

async fn customer(pool: &SqlitePool, headers: &HeaderMap) -> Result<Option<Customer>, sqlx::Error> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let token = cookies
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split("; "))
        .find_map(|cookie| cookie.strip_prefix("session="));
    let Some(token) = token else { return Ok(None) };
    let customer = sqlx::query_scalar("SELECT customer FROM sessions WHERE token = ?")
        .bind(token)
        .fetch_optional(pool)
        .await?;
    Ok(customer.map(Customer))
}
