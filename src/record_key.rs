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
    ///
    /// This is how an operator finds a record, and frees its key, by what the client sent in its header (quoted or not) and whose
    /// key it is:
    ///
    /// ```
    /// use http::HeaderValue;
    /// use tower_idempotency::{KeyFormat, RecordKey, Scope, StoreError, store::Store};
    ///
    /// async fn free(store: &dyn Store, account: &str, sent: &HeaderValue) -> Result<bool, StoreError> {
    ///     let (Some(scope), Ok(key)) = (Scope::new(account), KeyFormat::default().parse(sent)) else {
    ///         return Ok(false);
    ///     };
    ///     let record_key = RecordKey::derive("", &scope, &key);
    ///     match store.inspect(&record_key).await? {
    ///         // Look at `record.state`, and at what the run has done, before the key is free for another one.
    ///         Some(_record) => store.forget(&record_key).await,
    ///         None => Ok(false),
    ///     }
    /// }
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http_body_util::Full;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_idempotency::{IdempotencyLayer, MemoryStore, RequestBody, ScopeBy};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # type Body = Full<bytes::Bytes>;
    /// # let store = MemoryStore::new();
    /// # let layer = IdempotencyLayer::new(store.clone(), ScopeBy::parts(|_| Scope::new("alice")));
    /// # let handler = service_fn(|_: http::Request<RequestBody<Body>>| async {
    /// #     Ok::<_, Infallible>(http::Response::new(Body::default()))
    /// # });
    /// # let request = http::Request::post("/").header("idempotency-key", "\"8e03978e\"").body(Body::default());
    /// # layer.layer(handler).oneshot(request.unwrap()).await.unwrap();
    /// # for (account, sent, freed) in [
    /// #     ("bob", "8e03978e", false), ("alice", "\"8e03978e\"", true), ("alice", "8e03978e", false),
    /// # ] {
    /// #     assert_eq!(free(&store, account, &HeaderValue::from_static(sent)).await.unwrap(), freed);
    /// # }
    /// # }
    /// ```
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

    /// All of it as 64 hexadecimal digits in lower case: for operators, and for SQL. Logs have the short `Debug` form, which the digits
    /// begin with.
    ///
    /// ```
    /// # use tower_idempotency::RecordKey;
    /// let record_key = RecordKey::from_bytes([0xc5; 32]);
    /// assert_eq!(RecordKey::from_hex(&record_key.to_hex()), Some(record_key));
    /// assert_eq!(format!("{record_key:?}"), "RecordKey(c5c5c5c5c5c5..)");
    /// ```
    #[must_use]
    pub fn to_hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// The record key with these 64 hexadecimal digits, in lower or upper case; none if they are anything else.
    #[must_use]
    pub fn from_hex(digits: &str) -> Option<Self> {
        let hash = blake3::Hash::from_hex(digits).ok()?;
        Some(Self(hash.into()))
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
