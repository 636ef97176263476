//! The protocol of Redis: both of its versions, without subscriptions.

use std::{
    io::{self, Read},
    sync::Arc,
};

use super::protocol::{Answer, Protocol, Reply, Request, malformed};

/// Sent by drivers when they connect, and to look whether the connection lives.
const OF_CONNECTING: [&str; 8] = [
    "ASKING", "AUTH", "CLIENT", "CLUSTER", "HELLO", "PING", "READONLY", "SELECT",
];
/// Not every one of their answers can be told from what is sent unasked.
const NOT_SPOKEN: [&str; 7] = [
    "MONITOR",
    "PSUBSCRIBE",
    "PUNSUBSCRIBE",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "SUNSUBSCRIBE",
    "UNSUBSCRIBE",
];

#[derive(Debug)]
pub struct Redis;

impl Protocol for Redis {
    fn has_handshake(&self) -> bool {
        false
    }

    /// A command, as an array of strings.
    fn read_request(&self, client: &mut dyn Read) -> io::Result<Request> {
        let mut message = Message::default();
        if !message.read(client)? {
            return Err(malformed("not a command"));
        }
        let command = message.texts.first().map(|name| name.to_ascii_uppercase());
        let command = command.unwrap_or_default();
        if NOT_SPOKEN.contains(&&*command) {
            return Err(malformed("a command that isn't spoken"));
        }
        let reply = match OF_CONNECTING.contains(&&*command) {
            true => Reply::Pong,
            false => Reply::Answer,
        };
        Ok(Request {
            bytes: message.bytes,
            executes: vec![Arc::from(message.texts.join(" "))],
            reply,
        })
    }

    fn read_answer(&self, server: &mut dyn Read) -> io::Result<Answer> {
        let mut message = Message::default();
        let is_last = message.read(server)?;
        let bytes = message.bytes;
        Ok(Answer { bytes, is_last })
    }
}

#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
    /// All strings of a length in it.
    texts: Vec<String>,
}

impl Message {
    /// Reads a whole one; whether it answers something, and isn't sent unasked.
    fn read(&mut self, from: &mut dyn Read) -> io::Result<bool> {
        let mut is_answer = true;
        let mut values: u64 = 1;
        while values > 0 {
            let is_first = self.bytes.is_empty();
            let line = self.line(from)?;
            let kind = line.first().copied().unwrap_or_default();
            let length = || length(&line);
            values += match kind {
                b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => 0,
                b'$' | b'!' | b'=' => {
                    if let Some(length) = length()? {
                        self.text(from, length)?;
                    }
                    0
                }
                b'*' | b'~' => length()?.unwrap_or(0),
                b'>' => {
                    is_answer &= !is_first;
                    length()?.unwrap_or(0)
                }
                b'%' => 2 * length()?.unwrap_or(0),
                // Of the value that follows, and no value itself.
                b'|' => 2 * length()?.unwrap_or(0) + 1,
                _ => return Err(malformed("a value of no kind")),
            };
            values -= 1;
        }
        Ok(is_answer)
    }

    /// Without its end.
    fn line(&mut self, from: &mut dyn Read) -> io::Result<Vec<u8>> {
        let start = self.bytes.len();
        while !self.bytes[start..].ends_with(b"\r\n") {
            let mut byte = [0];
            from.read_exact(&mut byte)?;
            self.bytes.extend(byte);
        }
        Ok(self.bytes[start..self.bytes.len() - 2].to_vec())
    }

    fn text(&mut self, from: &mut dyn Read, length: u64) -> io::Result<()> {
        let start = self.bytes.len();
        // And the end of its line.
        let rest = length + 2;
        if from.take(rest).read_to_end(&mut self.bytes)? as u64 != rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = &self.bytes[start..self.bytes.len() - 2];
        self.texts.push(String::from_utf8_lossy(text).into_owned());
        Ok(())
    }
}

/// None of nothing, as `$-1`.
fn length(line: &[u8]) -> io::Result<Option<u64>> {
    let digits = line.get(1..).unwrap_or_default();
    if digits == b"-1" {
        return Ok(None);
    }
    let length = std::str::from_utf8(digits).ok();
    let length = length.and_then(|digits| digits.parse().ok());
    length.map(Some).ok_or_else(|| malformed("not a length"))
}
