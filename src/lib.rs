//! Idempotency keys for any tower service: a retried `POST` runs once and is answered from the record.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod digest;
mod error;
mod fingerprint;
mod key;
mod record_key;
mod saved;
mod scope;
pub mod store;

#[cfg(feature = "memory")]
pub use self::store::memory::MemoryStore;
pub use self::{
    error::{StoreError, StoreErrorKind},
    fingerprint::{Fingerprint, FingerprintBy, Identity, Tag},
    key::{IdempotencyKey, InvalidKey, KeyFormat},
    record_key::RecordKey,
    saved::SavedResponse,
    scope::{Scope, ScopeBy},
};
