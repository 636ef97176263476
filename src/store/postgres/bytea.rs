//! Bytes as Postgres writes them in text.

use crate::store::sql::hex::decode;

/// Reads a `bytea` in either form of `bytea_output`.
pub(super) fn bytea(text: &[u8]) -> Option<Vec<u8>> {
    match text.strip_prefix(b"\\x") {
        Some(digits) => decode(digits),
        None => unescape(text),
    }
}

/// `\\` is a backslash, `\nnn` any other byte that isn't printed.
fn unescape(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    loop {
        text = match text {
            [] => return Some(bytes),
            [b'\\', b'\\', rest @ ..] => {
                bytes.push(b'\\');
                rest
            }
            [b'\\', octal @ b'0'..=b'3', rest @ ..] => {
                let (&[second @ b'0'..=b'7', third @ b'0'..=b'7'], rest) =
                    rest.split_first_chunk()?
                else {
                    return None;
                };
                bytes.push((octal - b'0') << 6 | (second - b'0') << 3 | (third - b'0'));
                rest
            }
            [b'\\', ..] => return None,
            [byte, rest @ ..] => {
                bytes.push(*byte);
                rest
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::hex::encode;

    #[test]
    fn both_forms_of_a_bytea_are_read() {
        let all: Vec<u8> = (0..=255).collect();
        let mut hex = String::from("\\x");
        encode(&all, &mut hex);
        assert_eq!(bytea(hex.as_bytes()), Some(all.clone()));
        let escape = |byte: &u8| match byte {
            b'\\' => "\\\\".to_owned(),
            b' '..=b'~' => char::from(*byte).to_string(),
            _ => format!("\\{byte:03o}"),
        };
        let escaped: String = all.iter().map(escape).collect();
        assert_eq!(bytea(escaped.as_bytes()), Some(all));
        assert_eq!(bytea(b""), Some(Vec::new()));
        for broken in ["\\x0", "\\xzz", "\\", "\\1", "\\400", "\\18a"] {
            assert_eq!(bytea(broken.as_bytes()), None, "{broken}");
        }
    }
}
