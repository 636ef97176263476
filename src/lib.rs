//! Idempotency keys for any tower service: a retried `POST` runs once and is answered from the record.
//!
//! [`IdempotencyLayer`] wraps a `Service<http::Request<_>>`. A request with an `Idempotency-Key` reserves its key in a
//! [`Store`](store::Store), the handler runs, its response is saved, and every retry with the same key gets that response.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_idempotency::{IdempotencyLayer, MemoryStore, RequestBody, ScopeBy};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Infallible> {
//! type Body = Full<bytes::Bytes>;
//!
//! let charge = service_fn(|_request: Request<RequestBody<Body>>| async {
//!     Ok::<_, Infallible>(Response::new(Body::from("charged")))
//! });
//! let service = ServiceBuilder::new()
//!     .layer(IdempotencyLayer::new(MemoryStore::new(), ScopeBy::single_tenant()))
//!     .service(charge);
//!
//! let request = || {
//!     let request = Request::post("/charges").header("idempotency-key", "8e03978e-40d5-43dd-bc93-6894a57f9324");
//!     request.body(Body::from("100")).expect("a valid request")
//! };
//! let first = service.clone().oneshot(request()).await?;
//! let again = service.clone().oneshot(request()).await?;
//! assert!(!first.headers().contains_key("idempotent-replayed"));
//! assert_eq!(again.headers()["idempotent-replayed"], "true");
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! - The README: what a client sees, what is guaranteed, how to choose store, scope, lease and retention, where the layer goes.
//! - `docs/patterns.md`: the business table as the store, an outbox for e-mails, a receiver of webhooks. `docs/limits.md`: what
//!   a key can't do. `docs/client.md`, `docs/browser.md` and `docs/grpc.md`: for whoever calls. `docs/downstream.md`: effects elsewhere.
//! - [`IdempotencyLayer`]: every setting, with its default in [`defaults`].
//! - [`MemoryStore`] for tests and single processes; `TransactionStore`, with `Tx` for the handler's own writes, and `LeaseStore` in
//!   `sqlite`, `postgres` and `mysql`; `RedisStore`.
//! - [`ResponsePolicy`] and [`Verdict`]: which responses are saved, and which [runs are repeated](IdempotencyLayer::with_transaction_retries). [`RejectionKind`]: what the layer answers by itself.
//! - [`with_grpc_unary`](IdempotencyLayer::with_grpc_unary) and [`GrpcStatus`]: unary gRPC calls, with tonic or without.
//! - [`Purger`] and [`Drain`]: removing expired records in the background, and shutting down.
//! - [`Outcome`], [`with_observer`](IdempotencyLayer::with_observer), features `tracing` and `metrics`: what becomes of requests.
//! - [`IdempotencyContext`]: what a handler can know, keys for downstream services, and [steps](IdempotencyContext::step) that a second
//!   run doesn't repeat. [`store::Steps`] is what a store needs for them.
//! - [`store::ListRecords`], [`RecordKey::derive`] and the example `ops`: for whoever operates a service.
//! - `client`: the layer for clients, [`IdempotencyKey::random`] and [`IdempotencyKey::derive`].
//! - [`store`] and `conformance`: writing a store of one's own, and proving it.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `memory` (default) | [`MemoryStore`] |
//! | `sqlite` | `sqlite::LeaseStore`, `sqlite::TransactionStore`, `Tx` (with sqlx and a bundled SQLite) |
//! | `postgres` | `postgres::LeaseStore`, `postgres::TransactionStore`, `Tx` (with sqlx) |
//! | `mysql` | `mysql::LeaseStore`, `mysql::TransactionStore` for MySQL and MariaDB, `Tx` (with sqlx) |
//! | `redis` | `RedisStore`, for Redis and Valkey, on one server or a cluster (with the `redis` crate) |
//! | `client` | `client::IdempotentRetryLayer`, a layer for clients: one key for each call, retries, and what is known of the outcome |
//! | `reqwest` | `client`, and `client::ReqwestService`: reqwest as a service for that layer (TLS and the rest are features of that crate) |
//! | `axum` | extractors for [`IdempotencyContext`] and `Tx`, [`Verdict`] as a response part; fingerprints use the original URI, so that `nest` changes nothing |
//! | `conformance` | the kit that checks a store against the contract |
//! | `tracing` | a span for each keyed request, inside the caller's, and events for what an operator may want to know |
//! | `metrics` | counters, histograms and gauges through the `metrics` facade |
//!
//! # What it asks for
//!
//! A Tokio runtime with its timer, for the layer and for clients: runs and unfinished store calls are tasks of their own, and have
//! limits. Task-locals don't follow a run
//! ([`with_spawn`](IdempotencyLayer::with_spawn) can carry them). Response extensions are not replayed.
#![cfg_attr(
    all(doctest, feature = "axum", feature = "sqlite"),
    doc = include_str!("../README.md")
)]
#![cfg_attr(
    all(doctest, feature = "axum", feature = "sqlite"),
    doc = include_str!("../docs/patterns.md")
)]
#![cfg_attr(all(doctest, feature = "memory"), doc = include_str!("../docs/grpc.md"))]
#![cfg_attr(all(doctest, feature = "reqwest"), doc = include_str!("../docs/client.md"))]
#![cfg_attr(all(doctest, feature = "memory"), doc = include_str!("../docs/downstream.md"))]
#![cfg_attr(all(doctest, feature = "memory"), doc = include_str!("../docs/operations.md"))]
#![cfg_attr(all(doctest, feature = "memory"), doc = include_str!("../docs/retention.md"))]
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(feature = "_sql"))))]

#[cfg(feature = "axum")]
mod axum;
mod body;
#[cfg(feature = "client")]
#[cfg_attr(docsrs, doc(cfg(feature = "client")))]
pub mod client;
mod codec;
mod config;
#[cfg(feature = "_sql")]
mod conflict;
#[cfg(feature = "conformance")]
#[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
pub mod conformance;
mod content_type;
mod context;
pub mod defaults;
mod digest;
mod drain;
mod error;
mod event;
mod fingerprint;
mod flow;
mod future;
mod grpc;
mod jitter;
mod key;
mod key_by;
mod layer;
mod metric;
#[cfg(feature = "mysql")]
#[cfg_attr(docsrs, doc(cfg(feature = "mysql")))]
pub mod mysql;
mod observation;
mod outcome;
mod policy;
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub mod postgres;
mod purger;
mod record_key;
mod rejection;
mod saved;
mod scope;
mod service;
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub mod sqlite;
mod step;
pub mod store;
mod structured_field;
#[cfg(feature = "_sql")]
mod tx;

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use self::axum::MissingContext;
#[cfg(feature = "memory")]
#[cfg_attr(docsrs, doc(cfg(feature = "memory")))]
pub use self::store::memory::MemoryStore;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use self::store::redis::RedisStore;
#[cfg(feature = "_sql")]
#[cfg_attr(
    docsrs,
    doc(cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql")))
)]
pub use self::tx::{Tx, TxError, TxErrorKind};
pub use self::{
    body::{RequestBody, ResponseBody},
    config::{OnInFlight, OnStoreFailure},
    context::IdempotencyContext,
    drain::Drain,
    error::{StoreError, StoreErrorKind},
    fingerprint::{Fingerprint, FingerprintBy, Identity, Tag},
    flow::DetachedRun,
    future::ResponseFuture,
    grpc::GrpcStatus,
    key::{IdempotencyKey, InvalidKey, KeyFormat},
    key_by::KeyBy,
    layer::IdempotencyLayer,
    observation::Observation,
    outcome::Outcome,
    policy::{ResponsePolicy, Verdict},
    purger::{Purger, PurgerHandle},
    record_key::RecordKey,
    rejection::{Rejection, RejectionKind},
    saved::SavedResponse,
    scope::{Scope, ScopeBy},
    service::Idempotency,
    step::{StepError, StepErrorKind},
};
