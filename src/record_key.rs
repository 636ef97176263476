use std::{
    fmt,
    hash::{Hash, Hasher},
};

use crate::{
    IdempotencyKey, Scope,
    digest::{Fields, fmt_short},
};

const PURPOSE: &[u8; 32] = b"tower-idempotency record keys v1";

/// The fixed-length name of a record: a digest of namespace, scope and key.
///
/// The derivation never changes, so that a record made by one release is found by every later one.
/// Its `Debug` form shows the first six bytes only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey([u8; 32]);

impl RecordKey {
    /// The record key of `key` in `scope`, for layers with this namespace (by default the empty one).
    #[must_use]
    pub fn derive(namespace: &str, scope: &Scope, key: &IdempotencyKey) -> Self {
        let mut fields = Fields::new();
        fields.push(namespace.as_bytes());
        fields.push(scope.as_bytes());
        Self(fields.digest(PURPOSE, key.as_str().as_bytes()))
    }

    /// The record key with these bytes, as a store read them.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a store to write.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Hash for RecordKey {
    /// Half of the digest: no two keys with the same half can be found either, and a map hashes it in half the time.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (half, _) = self.0.split_at(16);
        state.write(half);
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKey(")?;
        fmt_short(&self.0, f)?;
        f.write_str("..)")
    }
}
