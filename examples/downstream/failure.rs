use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};

use crate::BoxError;

/// A 5xx: what happened is not known, and a retry finds out.
pub(crate) struct Failure(BoxError);

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        eprintln!("{}", self.0);
        StatusCode::BAD_GATEWAY.into_response()
    }
}
