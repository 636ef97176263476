use std::fmt;

/// The fields of a digest, each with its length in front, so that no two lists of fields run into each other.
///
/// They are gathered first: a dozen small updates of a hasher cost more than hashing the bytes.
pub(crate) struct Fields(Vec<u8>);

impl Fields {
    pub(crate) fn new() -> Self {
        // An ordinary head with a small body fits.
        Self(Vec::with_capacity(256))
    }

    pub(crate) fn push(&mut self, field: &[u8]) {
        self.push_length(field.len());
        self.0.extend_from_slice(field);
    }

    /// A field that may be missing, which is not the same as an empty one.
    pub(crate) fn push_optional(&mut self, field: Option<&[u8]>) {
        self.0.push(field.is_some().into());
        if let Some(field) = field {
            self.push(field);
        }
    }

    /// As LEB128, seven bits a byte: one byte, mostly, where eight would cost another block to hash.
    fn push_length(&mut self, mut length: usize) {
        while length >= 0x80 {
            self.0.push(length as u8 | 0x80);
            length >>= 7;
        }
        self.0.push(length as u8);
    }

    /// BLAKE3 over the fields and a last one that needs no length.
    ///
    /// `purpose` takes the place of a secret key: no two uses in this crate have the same.
    pub(crate) fn digest(mut self, purpose: &[u8; 32], last: &[u8]) -> [u8; 32] {
        if last.len() <= COPIED {
            self.0.extend_from_slice(last);
            return blake3::keyed_hash(purpose, &self.0).into();
        }
        blake3::Hasher::new_keyed(purpose)
            .update(&self.0)
            .update(last)
            .finalize()
            .into()
    }
}

/// Up to this size a copy of the last field costs less than what a hasher does besides hashing.
const COPIED: usize = 1024;

/// The first bytes of a digest in hex: enough to find a record, too little to tell what was hashed.
pub(crate) fn fmt_short(digest: &[u8; 32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    digest
        .iter()
        .take(6)
        .try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::{COPIED, Fields};

    #[test]
    fn a_copied_field_is_hashed_like_one_that_is_not() {
        let purpose = b"tower-idempotency tests ........";
        for length in [0, 1, COPIED, COPIED + 1, 3 * COPIED] {
            let last = vec![7; length];
            let mut fields = Fields::new();
            fields.push(b"head");
            let all = [b"\x04head", &last[..]].concat();
            assert_eq!(
                fields.digest(purpose, &last),
                *blake3::keyed_hash(purpose, &all).as_bytes()
            );
        }
    }

    #[test]
    fn a_length_takes_seven_bits_a_byte() {
        for (length, bytes) in [
            (0, &[0][..]),
            (127, &[127]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (1 << 14, &[0x80, 0x80, 1]),
        ] {
            let mut fields = Fields::new();
            fields.push_length(length);
            assert_eq!(fields.0, bytes);
        }
    }
}
