/// A canonical form of a JSON text, or none if it has none and must be compared byte by byte.
pub(super) fn canonical(_text: &[u8]) -> Option<Vec<u8>> {
    None
}
