use std::{borrow::Cow, fmt};

use http::{
    HeaderName,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};

use super::{Identity, json};
use crate::digest::{Fields, fmt_short};

const PURPOSE: &[u8; 32] = b"tower-idempotency fingerprint v1";

/// What makes two requests under one key the same request, as a store keeps and compares it.
///
/// Two fingerprints can be compared only if their [tags](Tag) are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    tag: Tag,
    digest: [u8; 32],
}

/// The version and mode that a [`Fingerprint`] was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(u16);

impl Tag {
    pub(super) const EXACT: Self = Self(0x0101);
    pub(super) const JSON: Self = Self(0x0102);
    pub(super) const HEAD_ONLY: Self = Self(0x0103);
    pub(super) const CUSTOM: Self = Self(0x0104);

    /// The tag with this number, as a store read it.
    ///
    /// Numbers below 0x8000 belong to this crate (version in the high byte, mode in the low one);
    /// a store with fingerprints of its own takes one above.
    #[must_use]
    pub const fn from_u16(number: u16) -> Self {
        Self(number)
    }

    /// The number, for a store to write.
    #[must_use]
    pub const fn to_u16(self) -> u16 {
        self.0
    }
}

impl Fingerprint {
    /// A fingerprint as a store read it, or made in a form of its own.
    #[must_use]
    pub const fn new(tag: Tag, digest: [u8; 32]) -> Self {
        Self { tag, digest }
    }

    /// The fingerprint of a request in the mode that its layer was configured with.
    #[must_use]
    pub fn of(identity: &Identity<'_>) -> Self {
        Self::compute(identity, identity.tag)
    }

    /// The fingerprint of a request in another form, the one that a stored record has.
    ///
    /// None if the form is unknown, or needs a body or a closure that this request's layer doesn't have.
    #[must_use]
    pub fn in_form(identity: &Identity<'_>, tag: Tag) -> Option<Self> {
        let computable = match tag {
            Tag::EXACT | Tag::JSON => identity.body.is_some(),
            Tag::HEAD_ONLY => true,
            Tag::CUSTOM => identity.custom.is_some(),
            _ => false,
        };
        computable.then(|| Self::compute(identity, tag))
    }

    /// The form it was made in.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The digest, for a store to write.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    fn compute(identity: &Identity<'_>, tag: Tag) -> Self {
        let mut fields = Fields::new();
        fields.push(&tag.0.to_be_bytes());
        fields.push(identity.method.as_str().as_bytes());
        fields.push(identity.path.as_bytes());
        // `?` with nothing behind it is not the same target as no `?`.
        fields.push_optional(identity.query.map(str::as_bytes));
        for name in identity.extra_headers {
            fields.push_optional(Some(name.as_str().as_bytes()));
            push_header(&mut fields, identity, name);
        }
        fields.push_optional(None);
        if tag != Tag::CUSTOM {
            // The closure sees the whole head: a multipart boundary, say, must not get in behind its back.
            push_header(&mut fields, identity, &CONTENT_TYPE);
            push_header(&mut fields, identity, &CONTENT_ENCODING);
        }
        let body = identity.body.unwrap_or_default();
        let content = match tag {
            Tag::HEAD_ONLY => Cow::default(),
            Tag::CUSTOM => Cow::from(identity.custom.as_deref().unwrap_or_default()),
            Tag::JSON => {
                let canonical = json::canonical(body);
                fields.push(if canonical.is_some() {
                    b"json"
                } else {
                    b"exact"
                });
                canonical.map_or(Cow::from(body), Cow::from)
            }
            _ => Cow::from(body),
        };
        Self::new(tag, fields.digest(PURPOSE, &content))
    }
}

/// All values of the header, in order.
fn push_header(fields: &mut Fields, identity: &Identity<'_>, name: &HeaderName) {
    for value in identity.headers.get_all(name) {
        fields.push_optional(Some(value.as_bytes()));
    }
    fields.push_optional(None);
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:04x}:", self.tag.0)?;
        fmt_short(&self.digest, f)?;
        f.write_str("..)")
    }
}
