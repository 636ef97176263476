//! What the proxy needs to know of a protocol.

use std::{
    fmt,
    io::{self, Read},
    sync::Arc,
};

/// One connection's messages. Each side is read by one thread.
pub trait Protocol: fmt::Debug + Send + Sync {
    /// Whether a connection starts with a handshake, whose end counts as an answer.
    fn has_handshake(&self) -> bool {
        true
    }

    fn read_request(&self, client: &mut dyn Read) -> io::Result<Request>;
    fn read_answer(&self, server: &mut dyn Read) -> io::Result<Answer>;
}

/// What a client sent: as much as the server answers as a whole, or a message that has no answer of its own.
#[derive(Debug)]
pub struct Request {
    pub bytes: Vec<u8>,
    /// The SQL texts that it executes; of Redis, the command with its arguments.
    pub executes: Vec<Arc<str>>,
    pub reply: Reply,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply {
    None,
    /// To a request that does nothing. A pool sends one in the background whenever a connection comes back. To one that
    /// belongs to connecting, too.
    Pong,
    Answer,
}

/// A part of an answer.
#[derive(Debug)]
pub struct Answer {
    pub bytes: Vec<u8>,
    /// Whether it is the last one. The end of the handshake counts too.
    pub is_last: bool,
}

pub fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
