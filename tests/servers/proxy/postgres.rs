//! The protocol of Postgres, version 3.

use std::{
    collections::HashMap,
    io::{self, Read},
    sync::{Arc, Mutex, PoisonError},
};

use super::protocol::{Answer, Protocol, Reply, Request, malformed};

/// Its kind and its length.
const SYNC_ALONE: usize = 5;
const VERSION_3: [u8; 4] = [0, 3, 0, 0];
/// Instead of a version, on a connection of its own.
const CANCEL: [u8; 4] = [4, 210, 22, 46];

#[derive(Debug, Default)]
pub struct Postgres(Mutex<Client>);

#[derive(Debug, Default)]
struct Client {
    has_started: bool,
    /// SQL by the name of the prepared statement.
    statements: HashMap<Vec<u8>, Arc<str>>,
    /// SQL by the name of the portal.
    portals: HashMap<Vec<u8>, Arc<str>>,
}

impl Protocol for Postgres {
    /// A query, all messages to the next `Sync`, or one of another kind.
    fn read_request(&self, client: &mut dyn Read) -> io::Result<Request> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.has_started {
            state.has_started = true;
            return read_start(client);
        }
        let mut request = Request {
            bytes: Vec::new(),
            executes: Vec::new(),
            reply: Reply::None,
        };
        loop {
            let (kind, body) = read_message(client, &mut request.bytes)?;
            match kind {
                b'Q' => request.executes.push(text(&body)),
                b'P' | b'B' | b'E' | b'D' | b'C' => {
                    request.executes.extend(state.extended(kind, &body));
                    continue;
                }
                _ => {}
            }
            request.reply = match kind {
                b'S' if request.bytes.len() == SYNC_ALONE => Reply::Pong,
                b'Q' | b'S' | b'F' => Reply::Answer,
                _ => Reply::None,
            };
            return Ok(request);
        }
    }

    fn read_answer(&self, server: &mut dyn Read) -> io::Result<Answer> {
        let mut bytes = Vec::new();
        let (kind, _) = read_message(server, &mut bytes)?;
        let is_last = kind == b'Z';
        Ok(Answer { bytes, is_last })
    }
}

impl Client {
    /// The SQL that a message of the extended protocol executes, if it does.
    fn extended(&mut self, kind: u8, body: &[u8]) -> Option<Arc<str>> {
        let mut fields = body.split(|byte| *byte == 0);
        let name = fields.next()?.to_vec();
        match kind {
            b'P' => {
                self.statements.insert(name, text(fields.next()?));
            }
            b'B' => {
                let statement = self.statements.get(fields.next()?)?;
                self.portals.insert(name, Arc::clone(statement));
            }
            b'E' => return self.portals.get(&name).map(Arc::clone),
            _ => {}
        }
        None
    }
}

/// The first message has no kind. Its answer is that of the handshake.
fn read_start(client: &mut dyn Read) -> io::Result<Request> {
    let mut bytes = Vec::new();
    let body = read_body(client, &mut bytes)?;
    if ![VERSION_3, CANCEL]
        .iter()
        .any(|start| body.starts_with(start))
    {
        return Err(malformed("not a start without TLS"));
    }
    Ok(Request {
        bytes,
        executes: Vec::new(),
        reply: Reply::None,
    })
}

/// A message's kind and body; all of it is appended to `bytes`.
fn read_message(from: &mut dyn Read, bytes: &mut Vec<u8>) -> io::Result<(u8, Vec<u8>)> {
    let mut kind = [0];
    from.read_exact(&mut kind)?;
    bytes.extend(kind);
    Ok((kind[0], read_body(from, bytes)?))
}

fn read_body(from: &mut dyn Read, bytes: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let rest = u32::from_be_bytes(length).checked_sub(4);
    let rest = rest.ok_or_else(|| malformed("a length less than its own"))?;
    let mut body = vec![0; rest as usize];
    from.read_exact(&mut body)?;
    bytes.extend(length);
    bytes.extend(&body);
    Ok(body)
}

/// Up to the terminating zero.
fn text(bytes: &[u8]) -> Arc<str> {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into()
}
