//! Bytes as hexadecimal digits.

#[cfg(any(feature = "postgres", feature = "mysql"))]
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends two digits for each byte.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn encode(bytes: &[u8], text: &mut String) {
    text.reserve(bytes.len() * 2);
    let digit = |value: u8| char::from(*DIGITS.get(usize::from(value)).unwrap_or(&b'0'));
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
}

/// Reads digits of either case.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn decode(digits: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_chunks::<2>();
    let pair = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    rest.is_empty().then(|| pairs.iter().map(pair).collect())?
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn digit(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}
