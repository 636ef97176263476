//! The protocol of MySQL and MariaDB.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::protocol::{Answer, Protocol, Reply, Request, malformed};

const CLIENT_SSL: u32 = 1 << 11;
const CLIENT_DEPRECATE_EOF: u32 = 1 << 24;
const SERVER_MORE_RESULTS_EXISTS: u16 = 8;
const COM_PING: u8 = 0x0e;
const OK: u8 = 0x00;
const LOCAL_INFILE: u8 = 0xfb;
/// Of an end of rows; a row of at least 16 MiB starts with it too.
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;
/// The payload of a packet that goes on in the next one.
const FULL: usize = 0xff_ffff;

#[derive(Debug)]
pub struct Mysql(Mutex<Conversation>);

#[derive(Debug)]
struct Conversation {
    /// As the client wants it; none before it said so.
    ends_without_eof: Option<bool>,
    /// What the server has to answer yet, in this order.
    expected: VecDeque<Expected>,
    /// SQL by the number that the server gave to the prepared statement.
    statements: HashMap<u32, Arc<str>>,
}

/// What the server's next packet belongs to.
#[derive(Debug)]
enum Expected {
    Handshake,
    /// One packet.
    Packet,
    Prepared(Arc<str>),
    /// The first packet of a result.
    Result,
    /// So many packets, and then what follows.
    Skip(u64, After),
    Rows,
}

#[derive(Clone, Copy, Debug)]
enum After {
    Rows,
    Nothing,
}

impl Default for Mysql {
    /// The server speaks first.
    fn default() -> Self {
        Self(Mutex::new(Conversation {
            ends_without_eof: None,
            expected: VecDeque::from([Expected::Handshake]),
            statements: HashMap::new(),
        }))
    }
}

impl Mysql {
    fn conversation(&self) -> MutexGuard<'_, Conversation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Protocol for Mysql {
    fn read_request(&self, client: &mut dyn Read) -> io::Result<Request> {
        let packet = Packet::read(client)?;
        let mut conversation = self.conversation();
        let mut executes = Vec::new();
        let mut reply = Reply::None;
        // A packet with a later number goes on with what the server asked for.
        if packet.number == 0 {
            let (expected, executed) = conversation.command(&packet.payload);
            reply = match (&expected, packet.payload.first()) {
                (None, _) => Reply::None,
                (_, Some(&COM_PING)) => Reply::Pong,
                _ => Reply::Answer,
            };
            conversation.expected.extend(expected);
            executes.extend(executed);
        } else if conversation.ends_without_eof.is_none() {
            conversation.greeted(&packet.payload)?;
        }
        Ok(Request {
            bytes: packet.bytes,
            executes,
            reply,
        })
    }

    fn read_answer(&self, server: &mut dyn Read) -> io::Result<Answer> {
        let packet = Packet::read(server)?;
        let is_last = self.conversation().answered(&packet.payload);
        let bytes = packet.bytes;
        Ok(Answer { bytes, is_last })
    }
}

impl Conversation {
    fn greeted(&mut self, payload: &[u8]) -> io::Result<()> {
        let capabilities = payload
            .first_chunk()
            .map(|bytes| u32::from_le_bytes(*bytes));
        let capabilities = capabilities.unwrap_or(CLIENT_SSL);
        if capabilities & CLIENT_SSL != 0 {
            return Err(malformed("not a start without TLS"));
        }
        self.ends_without_eof = Some(capabilities & CLIENT_DEPRECATE_EOF != 0);
        Ok(())
    }

    /// What answers a command, and the SQL that it executes.
    fn command(&self, payload: &[u8]) -> (Option<Expected>, Option<Arc<str>>) {
        let (command, rest) = payload.split_first().unwrap_or((&0, &[]));
        let text = || Arc::from(String::from_utf8_lossy(rest));
        match command {
            // COM_QUIT, COM_STMT_SEND_LONG_DATA, COM_STMT_CLOSE
            0x01 | 0x18 | 0x19 => (None, None),
            // COM_QUERY
            0x03 => (Some(Expected::Result), Some(text())),
            // COM_STMT_PREPARE
            0x16 => (Some(Expected::Prepared(text())), None),
            // COM_STMT_EXECUTE
            0x17 => {
                let id = rest.first_chunk().map(|id| u32::from_le_bytes(*id));
                let statement = id.and_then(|id| self.statements.get(&id));
                (Some(Expected::Result), statement.cloned())
            }
            // COM_CHANGE_USER
            0x11 => (Some(Expected::Handshake), None),
            _ => (Some(Expected::Packet), None),
        }
    }

    /// Whether this packet is the last one of its answer.
    fn answered(&mut self, payload: &[u8]) -> bool {
        let Some(expected) = self.expected.pop_front() else {
            // Such as an error before the connection is closed.
            return false;
        };
        let next = self.next(expected, payload);
        let is_last = next.is_none();
        if let Some(next) = next {
            self.expected.push_front(next);
        }
        is_last
    }

    /// What is expected after this packet, if the answer goes on.
    fn next(&mut self, expected: Expected, payload: &[u8]) -> Option<Expected> {
        let eof = u64::from(!self.ends_without_eof.unwrap_or(false));
        let kind = payload.first().copied().unwrap_or(ERROR);
        match expected {
            Expected::Packet => None,
            _ if kind == ERROR => None,
            Expected::Handshake => (kind != OK).then_some(Expected::Handshake),
            Expected::Prepared(sql) => {
                let number = |at: usize| u16::from_le_bytes([payload[at], payload[at + 1]]);
                let id = u32::from(number(1)) | u32::from(number(3)) << 16;
                self.statements.insert(id, sql);
                // Definitions of the columns and of the parameters.
                let definitions = [number(5), number(7)].map(u64::from);
                let packets = definitions.iter().filter(|count| **count > 0);
                skip(packets.map(|count| count + eof).sum(), After::Nothing)
            }
            Expected::Result if kind == OK => more_results(status_of_ok(payload)),
            Expected::Result if kind == LOCAL_INFILE => Some(Expected::Result),
            Expected::Result => {
                let (columns, _) = length_encoded(payload);
                skip(columns + eof, After::Rows)
            }
            Expected::Skip(count, after) => skip(count - 1, after),
            Expected::Rows if kind == END && eof == 0 && payload.len() < FULL => {
                more_results(status_of_ok(payload))
            }
            Expected::Rows if kind == END && eof == 1 && payload.len() < 9 => {
                more_results(u16::from_le_bytes([payload[3], payload[4]]))
            }
            Expected::Rows => Some(Expected::Rows),
        }
    }
}

fn skip(packets: u64, after: After) -> Option<Expected> {
    match (packets, after) {
        (0, After::Nothing) => None,
        (0, After::Rows) => Some(Expected::Rows),
        _ => Some(Expected::Skip(packets, after)),
    }
}

fn more_results(status: u16) -> Option<Expected> {
    (status & SERVER_MORE_RESULTS_EXISTS != 0).then_some(Expected::Result)
}

/// After the affected rows and the last insert's number.
fn status_of_ok(payload: &[u8]) -> u16 {
    let (_, rows) = length_encoded(&payload[1..]);
    let (_, id) = length_encoded(&payload[1 + rows..]);
    let at = 1 + rows + id;
    u16::from_le_bytes([payload[at], payload[at + 1]])
}

/// A number, and how many bytes it took.
fn length_encoded(bytes: &[u8]) -> (u64, usize) {
    let size = match bytes[0] {
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        number => return (u64::from(number), 1),
    };
    let mut number = [0; 8];
    number[..size].copy_from_slice(&bytes[1..=size]);
    (u64::from_le_bytes(number), 1 + size)
}

/// With all that continue it.
struct Packet {
    bytes: Vec<u8>,
    number: u8,
    payload: Vec<u8>,
}

impl Packet {
    fn read(from: &mut dyn Read) -> io::Result<Self> {
        let mut packet = Self {
            bytes: Vec::new(),
            number: 0,
            payload: Vec::new(),
        };
        loop {
            let mut head = [0; 4];
            from.read_exact(&mut head)?;
            let [low, middle, high, number] = head;
            let length = u32::from_le_bytes([low, middle, high, 0]) as usize;
            if packet.bytes.is_empty() {
                packet.number = number;
            }
            let start = packet.payload.len();
            packet.payload.resize(start + length, 0);
            from.read_exact(&mut packet.payload[start..])?;
            packet.bytes.extend(head);
            packet.bytes.extend(&packet.payload[start..]);
            if length < FULL {
                return Ok(packet);
            }
        }
    }
}
