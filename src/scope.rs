use std::{fmt, sync::Arc};

use http::{HeaderName, request::Parts};

/// Whose key it is: two scopes never share a record.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Box<[u8]>);

impl Scope {
    /// The scope with this name, or none if the name is empty.
    ///
    /// Scopes are compared byte by byte: nothing is trimmed, folded or normalised.
    #[must_use]
    pub fn new(name: impl Into<Vec<u8>>) -> Option<Self> {
        let name = name.into();
        (!name.is_empty()).then(|| Self(name.into()))
    }

    /// The one scope of [`ScopeBy::single_tenant`].
    #[must_use]
    pub fn single_tenant() -> Self {
        Self(Box::default())
    }

    /// The name as it goes into the record key; empty for the single tenant.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope(\"{}\")", self.0.escape_ascii())
    }
}

type ScopeFn = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;

/// How the scope of a request is found: the one decision that the library can't make.
///
/// A request without a scope is refused with 403 `missing_scope`, it never falls into a bucket shared with others.
/// Whatever tells the scope (authentication, mostly) must be a layer *outside* the idempotency layer.
/// Don't use the raw `Authorization` header: a refreshed token would run the operation again.
#[derive(Clone)]
pub struct ScopeBy(Arc<ScopeFn>);

impl ScopeBy {
    /// By a value that an outer layer put into the request's extensions.
    ///
    /// No such extension, or an empty text, means no scope. What the closure gives may not borrow from the extension: clone a text.
    ///
    /// ```
    /// use tower_idempotency::ScopeBy;
    ///
    /// #[derive(Clone)]
    /// struct Principal { id: u64, tenant: String }
    ///
    /// let scope = ScopeBy::extension(|principal: &Principal| principal.id);
    /// let scope = ScopeBy::extension(|principal: &Principal| principal.tenant.clone());
    /// ```
    #[must_use]
    pub fn extension<T, V>(name: impl Fn(&T) -> V + Send + Sync + 'static) -> Self
    where
        T: Send + Sync + 'static,
        V: fmt::Display,
    {
        Self::parts(move |parts| Scope::new(name(parts.extensions.get::<T>()?).to_string()))
    }

    /// By a header that a proxy in front of this server sets, and removes from what clients send.
    ///
    /// A missing or empty header, or more than one line of it, means no scope.
    #[must_use]
    pub fn trusted_header(name: HeaderName) -> Self {
        Self::parts(move |parts| {
            let mut values = parts.headers.get_all(&name).iter();
            let only = values.next().filter(|_| values.next().is_none())?;
            Scope::new(only.as_bytes())
        })
    }

    /// By a closure over the request's head. `None` means no scope.
    #[must_use]
    pub fn parts(scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static) -> Self {
        Self(Arc::new(scope))
    }

    /// One scope for all requests: whoever knows a key gets its answer.
    ///
    /// Right for a service with one trusted client, and for nothing else.
    #[must_use]
    pub fn single_tenant() -> Self {
        Self::parts(|_| Some(Scope::single_tenant()))
    }

    pub(crate) fn scope(&self, parts: &Parts) -> Option<Scope> {
        (self.0)(parts)
    }
}

impl fmt::Debug for ScopeBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScopeBy(..)")
    }
}
