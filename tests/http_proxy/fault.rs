//! What goes wrong.

use http::StatusCode;

/// What becomes of a request. To be closed is an orderly end for the client; to be reset is an error (RST).
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing goes wrong.
    Pass,
    /// The server never sees it; the connection is closed.
    LoseRequest,
    /// The server gets its head and half of its body, the rest is not read; both connections are reset.
    CutRequest,
    /// It waits in the proxy ([`Proxy::release`](super::Proxy::release)), and then reaches the server even if its client has gone.
    HoldRequest,
    /// The server answers; the connection is closed instead.
    LoseAnswer,
    /// The server answers; the connection is reset instead.
    ResetAnswer,
    /// The server answers; the client gets the head and half of the body, and then the connection is reset.
    CutAnswer,
    /// The server answers; the answer waits in the proxy ([`Proxy::release`](super::Proxy::release)), or until the client has gone.
    HoldAnswer,
    /// The server never sees it; these bytes answer it.
    Answer(Vec<u8>),
}

impl Fault {
    /// The proxy answers by itself.
    pub fn answer(status: StatusCode, headers: &[(&str, &str)], body: &str) -> Self {
        let mut answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            answer.push_str(&format!("{name}: {value}\r\n"));
        }
        answer.push_str("\r\n");
        answer.push_str(body);
        Self::Answer(answer.into_bytes())
    }

    /// The answer of an `IdempotencyLayer` while the key is in flight.
    pub fn in_flight() -> Self {
        let headers = [
            ("content-type", "application/problem+json"),
            ("retry-after", "1"),
        ];
        let body = r#"{"type":"about:blank","status":409,"code":"in_flight"}"#;
        Self::answer(StatusCode::CONFLICT, &headers, body)
    }
}
