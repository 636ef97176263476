//! Extractors and response parts for axum.

use std::convert::Infallible;

use ::axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, IntoResponseParts, Response, ResponseParts},
};
use http::{StatusCode, request::Parts};

use crate::{IdempotencyContext, Verdict};
#[cfg(feature = "_sql")]
use crate::{Tx, TxError, TxErrorKind};

/// Why a handler did not get its [`IdempotencyContext`]: the request has no key, or no idempotency layer is around the route.
///
/// As a response it is a 500, because the fault is the server's: require a key, or extract `Option<IdempotencyContext>`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MissingContext;

impl std::fmt::Display for MissingContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "no idempotency context: the request has no key (see require_key), or the route has no IdempotencyLayer",
        )
    }
}

impl std::error::Error for MissingContext {}

impl IntoResponse for MissingContext {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> FromRequestParts<S> for IdempotencyContext {
    type Rejection = MissingContext;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, MissingContext> {
        parts.extensions.get().cloned().ok_or(MissingContext)
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> OptionalFromRequestParts<S> for IdempotencyContext {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned())
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl IntoResponseParts for Verdict {
    type Error = Infallible;

    fn into_response_parts(self, mut response: ResponseParts) -> Result<ResponseParts, Infallible> {
        response.extensions_mut().insert(self);
        Ok(response)
    }
}

/// A 500, because the fault is the server's; its text tells the cause.
#[cfg(feature = "_sql")]
#[cfg_attr(
    docsrs,
    doc(cfg(all(
        feature = "axum",
        any(feature = "sqlite", feature = "postgres", feature = "mysql")
    )))
)]
impl IntoResponse for TxError {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

#[cfg(feature = "_sql")]
#[cfg_attr(
    docsrs,
    doc(cfg(all(
        feature = "axum",
        any(feature = "sqlite", feature = "postgres", feature = "mysql")
    )))
)]
impl<S: Sync, DB: sqlx::Database> FromRequestParts<S> for Tx<DB> {
    type Rejection = TxError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, TxError> {
        Self::take(&parts.extensions)
    }
}

/// None where the request has no transaction; one that was taken before is an error here too.
#[cfg(feature = "_sql")]
#[cfg_attr(
    docsrs,
    doc(cfg(all(
        feature = "axum",
        any(feature = "sqlite", feature = "postgres", feature = "mysql")
    )))
)]
impl<S: Sync, DB: sqlx::Database> OptionalFromRequestParts<S> for Tx<DB> {
    type Rejection = TxError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, TxError> {
        match Self::take(&parts.extensions) {
            Ok(tx) => Ok(Some(tx)),
            Err(error) if error.kind() == TxErrorKind::Absent => Ok(None),
            Err(error) => Err(error),
        }
    }
}
