use http::{HeaderMap, header};

/// What every content type of gRPC begins with.
pub(crate) const GRPC: &str = "application/grpc";

/// Media types are compared without regard to case (RFC 9110 section 8.3.1).
pub(crate) fn starts_with(headers: &HeaderMap, start: &[u8]) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.as_bytes().get(..start.len()))
        .is_some_and(|found| found.eq_ignore_ascii_case(start))
}

/// Whether a message is one of gRPC, in any of its encodings.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    starts_with(headers, GRPC.as_bytes())
}
