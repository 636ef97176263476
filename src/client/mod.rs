//! The client side: one key for each call, kept over its retries.
//!
//! [`IdempotentRetryLayer`] wraps a client that is a `Service<http::Request<_>>`, such as hyper-util's, or reqwest through
//! `ReqwestService` (feature `reqwest`). It makes the key before the first attempt, sends the same bytes with each attempt, knows
//! which answers a retry may change, and tells with the answer, or with the [`Error`], how it came about.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http::{Request, Response, StatusCode};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_idempotency::{RequestBody, client::{Delivery, IdempotentRetryLayer}};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tower_idempotency::client::Error> {
//! # let attempts = std::sync::atomic::AtomicU32::new(0);
//! # let attempts: &'static _ = Box::leak(Box::new(attempts));
//! # let connection = service_fn(move |request: Request<RequestBody<Full<Bytes>>>| async move {
//! #     assert!(request.headers().contains_key("idempotency-key"));
//! #     let mut response = Response::new(Full::<Bytes>::from("charged"));
//! #     if attempts.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
//! #         *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
//! #     }
//! #     Ok::<_, Infallible>(response)
//! # });
//! let client = ServiceBuilder::new().layer(IdempotentRetryLayer::new()).service(connection);
//!
//! let request = Request::post("http://payments.test/charges").body(Full::<Bytes>::from("100"));
//! let response = client.oneshot(request.expect("a valid request")).await?;
//!
//! let delivery = response.extensions().get::<Delivery>().expect("a keyed call");
//! println!("{} after {} attempts, key {}", response.status(), delivery.attempts(), delivery.key().as_str());
//! # assert_eq!((response.status(), delivery.attempts()), (StatusCode::OK, 2));
//! # Ok(())
//! # }
//! ```
//!
//! # What is retried
//!
//! | an attempt ends with | by default |
//! |---|---|
//! | an error of the wrapped service, or of an answer's body that is [collected](IdempotentRetryLayer::with_response_body_limit) | retried |
//! | no answer within the [attempt timeout](IdempotentRetryLayer::with_attempt_timeout) | retried |
//! | 408, 425, 429, 500, 502, 503, 504 | retried |
//! | 409 `in_flight` (our problem document) | waited for: retried, without counting as an attempt |
//! | a replay, whatever its status | final |
//! | anything else: 2xx, 3xx, 400, 401, 403, 422, another 409 … | final |
//!
//! A gRPC answer counts by its `grpc-status`: UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL and UNKNOWN are what
//! 503, 504, 429 and 500 are elsewhere (UNKNOWN is what an unexpected failure in a handler becomes), and ABORTED is waited for if
//! the metadata `idempotency-code` says `in_flight`. One without a status is UNKNOWN, as for every gRPC client. [`RetryPolicy::by`] replaces the table, for servers with other words.
//!
//! A layer that decompresses answers belongs inside of this one, next to the connection: the code of a 409 can't be read otherwise,
//! and its outcome counts as unknown.
//!
//! `Retry-After`, in seconds or as a date, and `grpc-retry-pushback-ms` are the least that a pause takes. Beyond that, pauses are
//! random, up to a bound that doubles with each attempt ("full jitter"). A retry that the [deadline](IdempotentRetryLayer::with_deadline),
//! the [number of attempts](IdempotentRetryLayer::with_attempts), the [key's age](IdempotentRetryLayer::with_max_key_age) or the
//! [budget](IdempotentRetryLayer::with_retry_budget) doesn't allow is not waited for: the caller gets the answer as it is, and
//! [`Delivery::gave_up`] tells.
//!
//! # What the caller knows
//!
//! [`Delivery::outcome_is_unknown`] and [`Error::outcome_is_unknown`] tell *unknown* from *failed*: as soon as one attempt may
//! have taken effect, and no answer told of it, the outcome is unknown. Such a call must be resumed with the
//! [same key](Error::key) and the same request, later or by somebody else; a new key could do it twice. See [`Resumed`].
//!
//! # In tests
//!
//! Code that handles a [`Delivery`] or an [`Error`] is tested with the layer around a closure, which makes each of them as it would
//! come:
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{Layer, ServiceExt, service_fn};
//! use tower_idempotency::{RequestBody, client::{ErrorKind, IdempotentRetryLayer}};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! type Body = Full<Bytes>;
//!
//! let wire = service_fn(|_: Request<RequestBody<Body>>| async { Err::<Response<Body>, _>("reset by peer") });
//! let client = IdempotentRetryLayer::new().with_attempts(2).layer(wire);
//!
//! let error = client.oneshot(Request::post("/charges").body(Body::from("100")).expect("a request")).await.expect_err("no answer");
//! assert_eq!((error.kind(), error.attempts(), error.outcome_is_unknown()), (ErrorKind::Service, 2, true));
//! # }
//! ```
//!
//! # What passes through
//!
//! Requests with a safe method (GET, HEAD, OPTIONS, TRACE), which need no key and which any retry layer may repeat; gRPC calls
//! whose path isn't [named unary](IdempotentRetryLayer::with_grpc_unary), and gRPC-Web, which the server doesn't protect either. They
//! get no key, are sent once, and carry no [`Delivery`].

mod age;
mod answer;
mod attempt;
mod budget;
mod call;
pub mod defaults;
mod delivery;
mod error;
mod future;
mod layer;
mod meaning;
mod outgoing;
mod pause;
mod policy;
mod progress;
#[cfg(feature = "reqwest")]
mod reqwest;
mod resumed;
mod service;
mod settings;

#[cfg(feature = "reqwest")]
#[cfg_attr(docsrs, doc(cfg(feature = "reqwest")))]
pub use self::reqwest::{ReqwestFuture, ReqwestService};
pub use self::{
    answer::Answer,
    delivery::{Delivery, GaveUp},
    error::{Error, ErrorKind},
    future::ResponseFuture,
    layer::IdempotentRetryLayer,
    policy::{AttemptEnd, Decision, RetryPolicy},
    resumed::Resumed,
    service::IdempotentRetry,
};
