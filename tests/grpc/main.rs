//! gRPC through the layer: tonic on both ends of a real HTTP/2 connection, a client that nobody here wrote, and responses that
//! tonic never makes.
#![allow(
    unreachable_pub,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "clippy takes the modules of a test for production code"
)]

mod calls;
mod cancelled;
mod engaged;
#[cfg(unix)]
mod example;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../servers/external.rs"]
mod external;
mod generated;
#[cfg(unix)]
mod interop;
#[cfg(any(unix, feature = "client"))]
mod log;
#[path = "../../examples/grpc/payments.rs"]
mod payments;
#[cfg(unix)]
#[path = "../server/mod.rs"]
mod processes;
mod refusals;
mod replays;
#[cfg(feature = "client")]
mod retries;
mod server;
#[path = "../../examples/grpc/service.rs"]
mod service;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod transactions;
mod verdicts;

use tonic::{Request, Response, Status};

use self::calls::{Ask, calls_client::CallsClient};

type Client = CallsClient<tonic::transport::Channel>;

/// Names the unary call, and no other.
fn is_unary(path: &str) -> bool {
    path == "/calls.v1.Calls/Unary"
}

fn ask(text: &str) -> Ask {
    Ask { text: text.into() }
}

/// A call with a key.
fn keyed(key: &str, text: &str) -> Request<Ask> {
    let mut request = Request::new(ask(text));
    let key = key.parse().expect("a metadata value");
    request.metadata_mut().insert("idempotency-key", key);
    request
}

/// The value of one field of the metadata.
fn metadata<'a, T>(reply: &'a Response<T>, name: &str) -> Option<&'a str> {
    let value = reply.metadata().get(name)?;
    Some(value.to_str().expect("text"))
}

fn is_replay<T>(reply: &Response<T>) -> bool {
    metadata(reply, "idempotent-replayed") == Some("true")
}

/// What the layer told by itself, if it was the layer.
fn code(status: &Status) -> Option<&str> {
    let code = status.metadata().get("idempotency-code");
    code.map(|code| code.to_str().expect("text"))
}

fn pushback(status: &Status) -> Option<i64> {
    let pushback = status.metadata().get("grpc-retry-pushback-ms")?;
    let pushback = pushback.to_str().expect("text");
    Some(pushback.parse().expect("a number"))
}
