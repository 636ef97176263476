use std::fmt::Display;

use axum::{
    extract::{FromRequest, rejection::JsonRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::json;
use tower_idempotency::Verdict;

/// What this server answers when it can't do what it was asked: `application/problem+json`, as the idempotency layer does.
///
/// None of these is saved under the key. The transaction is rolled back; on a transaction store a retry then runs, on a lease
/// store it does after a 4xx, and `TAKEOVER` decides after a 5xx.
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    verdict: Option<Verdict>,
}

impl Problem {
    pub(crate) fn unauthorized() -> Self {
        let detail = "Send `Authorization: Bearer alice`, or `bob`.";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    pub(crate) fn card_declined() -> Self {
        let detail = "The card was declined.";
        Self::new(StatusCode::PAYMENT_REQUIRED, "card_declined", detail)
    }

    pub(crate) fn no_such_charge() -> Self {
        let detail = "There is no such charge.";
        Self::new(StatusCode::NOT_FOUND, "no_such_charge", detail)
    }

    pub(crate) fn already_refunded() -> Self {
        let detail = "The charge was refunded before.";
        Self::new(StatusCode::CONFLICT, "already_refunded", detail)
    }

    /// The cause is for the server's log, not for its clients.
    pub(crate) fn internal(cause: impl Display) -> Self {
        eprintln!("internal error: {cause}");
        let detail = "Something went wrong here. Try again with the same key.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    }

    fn unavailable(cause: impl Display) -> Self {
        eprintln!("no database: {cause}");
        let detail = "The database can't be reached. Try again with the same key.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            verdict: None,
        }
    }
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
        (self.status, content_type, self.verdict, problem.to_string()).into_response()
    }
}

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        // A transaction that lost against another one may run again.
        let verdict = Verdict::for_error(&error);
        let problem = if matches!(error, sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut) {
            Self::unavailable(error)
        } else {
            Self::internal(error)
        };
        Self { verdict, ..problem }
    }
}

/// axum's extractor for JSON, whose refusals are problems: malformed JSON is 400, JSON that doesn't fit is 422.
#[derive(FromRequest)]
#[from_request(via(axum::Json), rejection(Problem))]
pub(crate) struct Json<T>(pub(crate) T);

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), "invalid_request", rejection.body_text())
    }
}
