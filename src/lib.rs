//! Idempotency keys for any tower service: a retried `POST` runs once and is answered from the record.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub mod axum;
mod body;
mod codec;
mod config;
#[cfg(feature = "conformance")]
#[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
pub mod conformance;
mod context;
pub mod defaults;
mod digest;
mod drain;
mod error;
mod event;
mod fingerprint;
mod flow;
mod future;
mod key;
mod key_by;
mod layer;
mod policy;
mod record_key;
mod rejection;
mod saved;
mod scope;
mod service;
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub mod sqlite;
pub mod store;
mod structured_field;
#[cfg(feature = "sqlite")]
mod tx;

#[cfg(feature = "memory")]
pub use self::store::memory::MemoryStore;
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
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
    key::{IdempotencyKey, InvalidKey, KeyFormat},
    key_by::KeyBy,
    layer::IdempotencyLayer,
    policy::{ResponsePolicy, Verdict},
    record_key::RecordKey,
    rejection::{Rejection, RejectionKind},
    saved::SavedResponse,
    scope::{Scope, ScopeBy},
    service::Idempotency,
};
