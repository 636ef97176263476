//! What differs for gRPC: its status is in the head or in the trailers, and a refusal is one.

mod protocol;
mod refusal;
mod status;

pub use self::status::GrpcStatus;
pub(crate) use self::{protocol::Protocol, refusal::CODE};
