//! What `payments.proto` says, as code.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    clippy::must_use_candidate,
    clippy::too_many_lines,
    reason = "generated"
)]

include!("payments.v1.rs");
