//! Idempotency keys for any tower service: a retried `POST` runs once and is answered from the record.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod codec;
mod digest;
mod error;
mod fingerprint;
mod key;
mod record_key;
mod saved;
mod scope;
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub mod sqlite;
pub mod store;
#[cfg(feature = "sqlite")]
mod tx;

pub use self::{
    error::{StoreError, StoreErrorKind},
    fingerprint::{Fingerprint, FingerprintBy, Identity, Tag},
    key::{IdempotencyKey, InvalidKey, KeyFormat},
    record_key::RecordKey,
    saved::SavedResponse,
    scope::{Scope, ScopeBy},
};
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use self::tx::{Tx, TxError, TxErrorKind};
