use std::fmt;

/// The fields of a digest, each with its length in front, so that no two lists of fields run into each other.
///
/// They are gathered first: a dozen small updates of a hasher cost more than hashing the bytes.
pub(crate) struct Fields(Vec<u8>);

impl Fields {
    pub(crate) fn new() -> Self {
        // The head of an ordinary request fits.
        Self(Vec::with_capacity(256))
    }

    pub(crate) fn push(&mut self, field: &[u8]) {
        self.0
            .extend_from_slice(&(field.len() as u64).to_le_bytes());
        self.0.extend_from_slice(field);
    }

    /// A field that may be missing, which is not the same as an empty one.
    pub(crate) fn push_optional(&mut self, field: Option<&[u8]>) {
        self.0.push(field.is_some().into());
        if let Some(field) = field {
            self.push(field);
        }
    }

    /// BLAKE3 over the fields and a last one that needs no length. It may be large, and is not copied.
    ///
    /// `purpose` takes the place of a secret key: no two uses in this crate have the same.
    pub(crate) fn digest(&self, purpose: &[u8; 32], last: &[u8]) -> [u8; 32] {
        blake3::Hasher::new_keyed(purpose)
            .update(&self.0)
            .update(last)
            .finalize()
            .into()
    }
}

/// The first bytes of a digest in hex: enough to find a record, too little to tell what was hashed.
pub(crate) fn fmt_short(digest: &[u8; 32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    digest
        .iter()
        .take(6)
        .try_for_each(|byte| write!(f, "{byte:02x}"))
}
