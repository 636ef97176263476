use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName, Method, Uri, request::Parts};

use super::Tag;

/// A request as far as its fingerprint is concerned: method, path, query, content headers, and the body where the mode reads it.
///
/// The layer builds it, the store turns it into a [`Fingerprint`](super::Fingerprint).
#[derive(Clone)]
pub struct Identity<'a> {
    pub(super) tag: Tag,
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
    pub(super) headers: &'a HeaderMap,
    pub(super) extra_headers: &'a [HeaderName],
    pub(super) body: Option<&'a [u8]>,
    pub(super) custom: Option<Vec<u8>>,
}

impl fmt::Debug for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("tag", &self.tag)
            .field("method", self.method)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

type CustomFn = dyn Fn(&Parts, &[u8]) -> Vec<u8> + Send + Sync;

/// How two requests under one key are told apart, besides method, path, query and the content type and encoding.
///
/// A key that comes again with another fingerprint is refused with 422 `key_reused`.
#[derive(Clone)]
pub struct FingerprintBy {
    mode: Mode,
    headers: Vec<HeaderName>,
}

#[derive(Clone)]
enum Mode {
    Exact,
    Json,
    HeadOnly,
    Custom(Arc<CustomFn>),
}

impl FingerprintBy {
    /// By the body's bytes. The default.
    #[must_use]
    pub fn exact() -> Self {
        Self::mode(Mode::Exact)
    }

    /// By the JSON value in the body: member order, blanks and string escapes don't matter.
    ///
    /// The text of a number does: `1` and `1.0` are two requests, and large amounts never merge.
    /// A body that isn't JSON, or has an object with two members of one name, is compared by its bytes.
    #[must_use]
    pub fn json() -> Self {
        Self::mode(Mode::Json)
    }

    /// Without the body, which then streams through to the handler.
    ///
    /// For uploads too large to buffer, and for forms that a user may edit and send again under the first key's answer.
    #[must_use]
    pub fn head_only() -> Self {
        Self::mode(Mode::HeadOnly)
    }

    /// By what the closure makes of head and body, in place of content type, content encoding and body.
    ///
    /// For multipart forms, whose boundary changes with each try, or to compare chosen members only.
    #[must_use]
    pub fn by(content: impl Fn(&Parts, &[u8]) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::mode(Mode::Custom(Arc::new(content)))
    }

    /// Also by all values of this header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName) -> Self {
        self.headers.push(name);
        self
    }

    /// The identity of a request. `body` is none if it was not collected.
    ///
    /// Runs the closure of [`by`](Self::by).
    #[must_use]
    pub fn identity<'a>(&'a self, parts: &'a Parts, body: Option<&'a [u8]>) -> Identity<'a> {
        let uri = original_uri(parts);
        let (tag, custom) = match &self.mode {
            Mode::Exact => (Tag::EXACT, None),
            Mode::Json => (Tag::JSON, None),
            Mode::HeadOnly => (Tag::HEAD_ONLY, None),
            Mode::Custom(content) => (Tag::CUSTOM, Some(content(parts, body.unwrap_or_default()))),
        };
        Identity {
            tag,
            method: &parts.method,
            path: uri.path(),
            query: uri.query(),
            headers: &parts.headers,
            extra_headers: &self.headers,
            body,
            custom,
        }
    }

    /// Whether the body must be collected first.
    pub(crate) fn reads_body(&self) -> bool {
        !matches!(self.mode, Mode::HeadOnly)
    }

    fn mode(mode: Mode) -> Self {
        Self {
            mode,
            headers: Vec::new(),
        }
    }
}

impl Default for FingerprintBy {
    fn default() -> Self {
        Self::exact()
    }
}

impl fmt::Debug for FingerprintBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Exact => "exact",
            Mode::Json => "json",
            Mode::HeadOnly => "head_only",
            Mode::Custom(_) => "by(..)",
        };
        f.debug_struct("FingerprintBy")
            .field("mode", &mode)
            .field("headers", &self.headers)
            .finish()
    }
}

/// The target as the client sent it: axum's `nest` takes its prefix off the request's own.
#[cfg(feature = "axum")]
fn original_uri(parts: &Parts) -> &Uri {
    parts
        .extensions
        .get::<::axum::extract::OriginalUri>()
        .map_or(&parts.uri, |original| &original.0)
}

#[cfg(not(feature = "axum"))]
fn original_uri(parts: &Parts) -> &Uri {
    &parts.uri
}
