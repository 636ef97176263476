//! The bodies that go into and come out of the wrapped service, and the bounded collection of either.

mod collect;
mod collected;
mod inner;
mod request;
mod response;

pub(crate) use self::{
    collect::{Collector, Stop},
    collected::Collected,
};
pub use self::{request::RequestBody, response::ResponseBody};
