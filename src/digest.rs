use std::fmt;

/// BLAKE3 over length-prefixed fields, so that no two lists of fields run into each other.
pub(crate) struct Digest(blake3::Hasher);

impl Digest {
    /// Starts with a label that no other use of the hash in this crate has.
    pub(crate) fn new(label: &[u8]) -> Self {
        Self(blake3::Hasher::new()).field(label)
    }

    pub(crate) fn field(mut self, field: &[u8]) -> Self {
        self.push(field);
        self
    }

    pub(crate) fn push(&mut self, field: &[u8]) {
        self.0.update(&(field.len() as u64).to_le_bytes());
        self.0.update(field);
    }

    pub(crate) fn push_all(&mut self, fields: &[&[u8]]) {
        for field in fields {
            self.push(field);
        }
    }

    /// A field that may be missing, which is not the same as an empty one.
    pub(crate) fn optional(&mut self, field: Option<&[u8]>) {
        match field {
            Some(field) => self.push_all(&[b"+", field]),
            None => self.push(b"-"),
        }
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// The first bytes of a digest in hex: enough to find a record, too little to tell what was hashed.
pub(crate) fn fmt_short(digest: &[u8; 32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    digest
        .iter()
        .take(6)
        .try_for_each(|byte| write!(f, "{byte:02x}"))
}
