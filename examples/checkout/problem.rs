use axum::{
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// `application/problem+json`, as the idempotency layer answers. The page tells by the code what it means.
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: &'static str,
}

impl Problem {
    pub(crate) const NO_SESSION: Self = Self {
        status: StatusCode::UNAUTHORIZED,
        code: "no_session",
        detail: "There is no session: it has ended, or cookies are switched off.",
    };
    pub(crate) const ANOTHER_SESSION: Self = Self {
        status: StatusCode::FORBIDDEN,
        code: "another_session",
        detail: "This purchase was begun in another session.",
    };
    pub(crate) const PRICE_CHANGED: Self = Self {
        status: StatusCode::UNPROCESSABLE_ENTITY,
        code: "price_changed",
        detail: "That is not what this costs now. Please look at your cart again.",
    };
    const INTERNAL: Self = Self {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        code: "internal",
        detail: "Something went wrong here.",
    };
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let problem = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        let content_type = [(CONTENT_TYPE, "application/problem+json")];
        (self.status, content_type, problem.to_string()).into_response()
    }
}

/// The cause is for the server's log, not for its clients.
impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        eprintln!("internal error: {error}");
        Self::INTERNAL
    }
}
