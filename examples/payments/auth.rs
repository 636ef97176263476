use axum::{
    extract::Request,
    http::{HeaderMap, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::problem::Problem;

/// Who calls: the scope of all keys, and the owner of all charges.
#[derive(Clone)]
pub(crate) struct Account(pub(crate) String);

/// A middleware, because the idempotency layer needs the account before any extractor runs.
pub(crate) async fn authenticate(mut request: Request, next: Next) -> Response {
    let Some(account) = account(request.headers()) else {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (challenge, Problem::unauthorized()).into_response();
    };
    request.extensions_mut().insert(account);
    next.run(request).await
}

/// The tokens are the names here. Real ones change, the account must stay the same.
fn account(headers: &HeaderMap) -> Option<Account> {
    let authorization = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = authorization.split_once(' ')?;
    let known = scheme.eq_ignore_ascii_case("bearer") && ["alice", "bob"].contains(&token);
    known.then(|| Account(token.to_owned()))
}
