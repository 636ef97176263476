use std::{error::Error, fmt, str::FromStr, sync::Arc};

use http::HeaderValue;
use uuid::Uuid;

use crate::structured_field::{quoted, string_item};

/// An idempotency key as the client sent it, after parsing: the same for its quoted and its bare form.
///
/// A client makes one for each operation that its user means, before the first attempt, and sends the same one with every retry:
/// [`random`](Self::random), or, where the key has to survive the process, [`derive`](Self::derive).
///
/// Its `Debug` form doesn't show it: whoever reads a key in a log could ask for its answer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The key with this text, under the rule of [`KeyFormat::default`]. Quotes are part of the text: for the value of a header there is
    /// [`KeyFormat::parse`].
    ///
    /// # Errors
    ///
    /// If it is empty, longer than 255 bytes, or has a character that isn't visible ASCII.
    pub fn new(text: &str) -> Result<Self, InvalidKey> {
        KeyFormat::default().check(text.as_bytes())
    }

    /// A fresh key: a random UUID (version 4).
    #[must_use]
    pub fn random() -> Self {
        Uuid::new_v4().into()
    }

    /// The key that belongs to this name, always the same one: a UUID (version 5) of both texts, each with its length.
    ///
    /// For a client that may die between sending a request and noting down with which key: it derives the key anew from what it
    /// has noted already, such as the number of an order. `namespace` keeps the operations apart that are named alike, as
    /// in `derive("refund", "order 17")`. The derivation never changes.
    ///
    /// Whoever knows the name knows the key. That is harmless where the server tells its callers' keys apart (our
    /// [`ScopeBy`](crate::ScopeBy)), and no secret.
    ///
    /// ```
    /// # use tower_idempotency::IdempotencyKey;
    /// let key = IdempotencyKey::derive("charge", "order 17");
    /// assert_eq!(key.as_str(), "bbade816-365e-5042-b06d-a058f91cfa5c");
    /// ```
    #[must_use]
    pub fn derive(namespace: &str, name: &str) -> Self {
        let mut text = Vec::with_capacity(16 + namespace.len() + name.len());
        for part in [namespace, name] {
            text.extend_from_slice(&(part.len() as u64).to_be_bytes());
            text.extend_from_slice(part.as_bytes());
        }
        Uuid::new_v5(&DERIVED_KEYS, &text).into()
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The header value that most servers take: the bare text; quoted, if it has a comma or a double quote, which no bare key has.
    ///
    /// It is marked [sensitive](HeaderValue::set_sensitive).
    #[must_use]
    pub fn to_header_value(&self) -> HeaderValue {
        if self.0.contains([',', '"']) {
            return self.to_quoted_header_value();
        }
        sensitive(&self.0)
    }

    /// The header value that the IETF draft asks for: an RFC 9651 string, in double quotes. Also marked sensitive.
    #[must_use]
    pub fn to_quoted_header_value(&self) -> HeaderValue {
        sensitive(&quoted(&self.0))
    }
}

/// As [`new`](IdempotencyKey::new): of the text, not of a header's value.
impl FromStr for IdempotencyKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Self::new(text)
    }
}

/// A hyphenated UUID, in lower case. So is a key for a downstream service, of
/// [`IdempotencyContext::derive_key`](crate::IdempotencyContext::derive_key).
impl From<Uuid> for IdempotencyKey {
    fn from(uuid: Uuid) -> Self {
        let mut buffer = Uuid::encode_buffer();
        Self(Arc::from(&*uuid.hyphenated().encode_lower(&mut buffer)))
    }
}

/// The namespace (RFC 9562 section 6.6) of derived keys. It never changes.
const DERIVED_KEYS: Uuid = Uuid::from_u128(0x1cba_e0b8_6807_403b_b2ce_c8ca_0447_1aed);

fn sensitive(text: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(text).expect("a key is visible ASCII");
    value.set_sensitive(true);
    value
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey(<{} bytes>)", self.0.len())
    }
}

/// Which keys are accepted, besides the rules that always hold: 1 to 255 visible ASCII characters.
#[derive(Clone, Debug)]
pub struct KeyFormat {
    min_length: usize,
    max_length: usize,
    uuid: bool,
}

impl KeyFormat {
    /// The most that any format accepts, in bytes; every store can keep a key of this length.
    pub const MAX_LENGTH: usize = 255;

    /// Only UUIDs, in their hyphenated form, of any version.
    #[must_use]
    pub fn uuid() -> Self {
        Self {
            uuid: true,
            ..Self::default()
        }
    }

    /// At least this many characters (default 1), so that short, guessable keys are refused.
    #[must_use]
    pub fn with_min_length(mut self, min_length: usize) -> Self {
        self.min_length = min_length;
        self
    }

    /// At most this many characters (default and upper bound [`MAX_LENGTH`](Self::MAX_LENGTH)).
    #[must_use]
    pub fn with_max_length(mut self, max_length: usize) -> Self {
        self.max_length = max_length;
        self
    }

    /// Whether any key at all can pass.
    pub(crate) fn is_satisfiable(&self) -> bool {
        let lengths = self.min_length..=self.max_length;
        (1..=Self::MAX_LENGTH).contains(&self.max_length)
            && !lengths.is_empty()
            && (!self.uuid || lengths.contains(&UUID_LENGTH))
    }

    /// Parses one header value: an RFC 9651 string with or without parameters, or the bare key that most clients send.
    ///
    /// # Errors
    ///
    /// If the value is neither, or the key in it is not of this format.
    pub fn parse(&self, value: &HeaderValue) -> Result<IdempotencyKey, InvalidKey> {
        let value = trim_spaces(value.as_bytes());
        match value.strip_prefix(b"\"") {
            Some(quoted) => self.check(&string_item(quoted).map_err(InvalidKey)?),
            None if value.contains(&b',') || value.contains(&b'"') => {
                Err(InvalidKey("a bare key has no comma and no double quote"))
            }
            None => self.check(value),
        }
    }

    pub(crate) fn check(&self, text: &[u8]) -> Result<IdempotencyKey, InvalidKey> {
        if text.is_empty() {
            return Err(InvalidKey("the key is empty"));
        }
        if text.len() > self.max_length.min(Self::MAX_LENGTH) {
            return Err(InvalidKey("the key is too long"));
        }
        if text.len() < self.min_length {
            return Err(InvalidKey("the key is too short"));
        }
        // Without an early end, which would keep the compiler from checking many bytes at once.
        let visible = |all, byte: &u8| all & byte.is_ascii_graphic();
        let text = str::from_utf8(text)
            .ok()
            .filter(|text| text.as_bytes().iter().fold(true, visible))
            .ok_or(InvalidKey(
                "the key has a character that isn't visible ASCII",
            ))?;
        // The other forms that a UUID parser takes (braces, URN, no hyphens) would be other keys.
        if self.uuid && (text.len() != UUID_LENGTH || Uuid::try_parse(text).is_err()) {
            return Err(InvalidKey("the key is not a UUID"));
        }
        Ok(IdempotencyKey(text.into()))
    }
}

/// Of the hyphenated form.
const UUID_LENGTH: usize = 36;

impl Default for KeyFormat {
    fn default() -> Self {
        Self {
            min_length: 1,
            max_length: Self::MAX_LENGTH,
            uuid: false,
        }
    }
}

/// Why a header value is not a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidKey(&'static str);

impl InvalidKey {
    pub(crate) const TWO_LINES: Self = Self("the header has more than one line");
    #[cfg(feature = "client")]
    pub(crate) const NOT_RESUMED: Self =
        Self("a resumed request needs the key that it was sent with");
    #[cfg(feature = "client")]
    pub(crate) const TWO_KEYS: Self = Self("the header and the extension are different keys");
}

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for InvalidKey {}

/// Without the spaces around it. A tab isn't taken off, RFC 9651 knows none: HTTP/1 parsers have done that already.
fn trim_spaces(mut value: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = value {
        value = rest;
    }
    value
}
