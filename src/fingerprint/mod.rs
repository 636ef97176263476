//! What makes two requests under one key the same request.

mod form;
mod identity;
mod json;

pub use self::{
    form::{Fingerprint, Tag},
    identity::{FingerprintBy, Identity},
};
