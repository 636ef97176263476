use http::{HeaderMap, header};

use crate::content_type::{self, GRPC};

/// What a request speaks, by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    /// gRPC over HTTP/2: the status is in the head or in the trailers.
    Grpc,
    /// gRPC-Web, or anything else that begins like gRPC: its status is somewhere in the body.
    GrpcLike,
}

impl Protocol {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        if !content_type::is_grpc(headers) {
            return Self::Http;
        }
        let rest = headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.as_bytes().get(GRPC.len()));
        match rest {
            // Bare, with a format as in `application/grpc+proto`, or with parameters.
            None | Some(b'+' | b';' | b' ' | b'\t') => Self::Grpc,
            Some(_) => Self::GrpcLike,
        }
    }
}
