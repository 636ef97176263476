//! A walk over the names of all records: by SCAN, on each master after the other.

use redis::{RedisError, Value};

use super::{
    connections::{Connections, Message},
    error::failed,
};
use crate::{RecordKey, StoreError, StoreErrorKind, store::Cursor};

/// How many names the server looks at in a step, ours or not. It does nothing else meanwhile.
const NAMES: u32 = 500;

pub(super) struct Walk<'a> {
    connections: &'a Connections,
    prefix: &'a str,
    masters: Masters,
    place: Place,
}

/// Those that share the records.
struct Masters {
    addresses: Vec<String>,
    /// Of all of them as processes, and of the prefix: what SCAN says to one of them means something else to another.
    identity: [u8; 16],
}

/// Where it goes on.
#[derive(Default)]
struct Place {
    /// The number of the master.
    master: usize,
    /// SCAN's, which is 0 at the end as well as at the beginning.
    cursor: u64,
    is_scanned: bool,
    /// Found there, and put back.
    held: Vec<RecordKey>,
}

impl<'a> Walk<'a> {
    /// From the beginning, or from where another one was.
    pub(super) async fn new(
        connections: &'a Connections,
        prefix: &'a str,
        after: Option<&Cursor>,
    ) -> Result<Self, StoreError> {
        let masters = Masters::of(connections, prefix).await?;
        let place = match after {
            Some(after) => masters.place(after.as_bytes()).ok_or_else(|| {
                let message = "the cursor is another store's, or from before a server was restarted or replaced: list anew";
                StoreError::new(StoreErrorKind::Other, message)
            })?,
            None => Place::default(),
        };
        Ok(Self {
            connections,
            prefix,
            masters,
            place,
        })
    }

    /// Some keys whose records are on [`master`](Self::master), possibly none, and some of them not for the first time. `None` at
    /// the end.
    pub(super) async fn step(&mut self) -> Result<Option<Vec<RecordKey>>, StoreError> {
        if self.is_over() {
            return Ok(None);
        }
        if !self.place.held.is_empty() {
            return Ok(Some(std::mem::take(&mut self.place.held)));
        }
        if self.place.is_scanned {
            self.place = Place {
                master: self.place.master + 1,
                ..Place::default()
            };
        }
        let (cursor, names) = self.scan().await.map_err(failed)?;
        self.place.cursor = cursor;
        self.place.is_scanned = cursor == 0;
        let keys = names.iter().filter_map(|name| self.key(name));
        Ok(Some(keys.collect()))
    }

    /// The next step has these again, of those of the last one.
    pub(super) fn put_back(&mut self, keys: impl Iterator<Item = RecordKey>) {
        self.place.held.extend(keys);
    }

    /// The address of the master of the last step.
    pub(super) fn master(&self) -> &str {
        let addresses = &self.masters.addresses;
        addresses.get(self.place.master).map_or("", String::as_str)
    }

    /// Where the next step is. `None` at the end.
    pub(super) fn cursor(&self) -> Option<Cursor> {
        let is_over = self.is_over();
        (!is_over).then(|| Cursor::from_bytes(self.place.encode(&self.masters.identity)))
    }

    fn is_over(&self) -> bool {
        let is_last = self.place.master + 1 == self.masters.addresses.len();
        is_last && self.place.is_scanned && self.place.held.is_empty()
    }

    async fn scan(&self) -> Result<(u64, Vec<Vec<u8>>), RedisError> {
        let mut commands = redis::pipe();
        commands.cmd("SCAN").arg(self.place.cursor);
        commands.arg("MATCH").arg(pattern(self.prefix));
        commands.arg("COUNT").arg(NAMES);
        let message = Message::ToMaster(self.master(), &commands);
        let answers: Value = self.connections.send(message).await?;
        let (answer,) = redis::from_redis_value(answers.extract_error()?)?;
        Ok(answer)
    }

    /// The key of a record with this name, as the store gave it.
    fn key(&self, name: &[u8]) -> Option<RecordKey> {
        let name = name.strip_prefix(self.prefix.as_bytes())?;
        let digest = name.strip_prefix(b":{")?.strip_suffix(b"}")?;
        let is_lower = !digest.iter().any(u8::is_ascii_uppercase);
        let hash = blake3::Hash::from_hex(digest).ok().filter(|_| is_lower)?;
        Some(RecordKey::from_bytes(*hash.as_bytes()))
    }
}

impl Masters {
    async fn of(connections: &Connections, prefix: &str) -> Result<Self, StoreError> {
        let mut command = redis::cmd("INFO");
        command.arg("server");
        let mut masters = told(connections, &command, "run_id:").await?;
        if connections.is_cluster() {
            // The driver leaves out those that it has no connection to.
            let mut command = redis::cmd("CLUSTER");
            command.arg("INFO");
            let sizes = told(connections, &command, "cluster_size:").await?;
            let sizes = sizes.iter().filter_map(|(_, size)| size.parse().ok());
            let (found, size) = (masters.len(), sizes.max().unwrap_or(usize::MAX));
            if found < size {
                let message = format!("{found} masters of the cluster can be asked, of {size}");
                return Err(StoreError::new(StoreErrorKind::Unavailable, message));
            }
        }
        masters.sort();
        let mut identity = blake3::Hasher::new();
        identity.update(prefix.as_bytes());
        for (address, run) in &masters {
            identity.update(format!("\n{address} {run}").as_bytes());
        }
        let mut bytes = [0; 16];
        identity.finalize_xof().fill(&mut bytes);
        Ok(Self {
            addresses: masters.into_iter().map(|(address, _)| address).collect(),
            identity: bytes,
        })
    }

    fn place(&self, cursor: &[u8]) -> Option<Place> {
        let cursor = cursor.strip_prefix(&self.identity)?;
        let (master, cursor) = cursor.split_first_chunk()?;
        let (scanned, cursor) = cursor.split_first_chunk()?;
        let ([is_scanned], held) = cursor.split_first_chunk()?;
        let (held, []) = held.as_chunks() else {
            return None;
        };
        let master = usize::try_from(u32::from_be_bytes(*master)).ok()?;
        (master < self.addresses.len()).then(|| Place {
            master,
            cursor: u64::from_be_bytes(*scanned),
            is_scanned: *is_scanned == 1,
            held: held.iter().copied().map(RecordKey::from_bytes).collect(),
        })
    }
}

impl Place {
    fn encode(&self, identity: &[u8]) -> Vec<u8> {
        let master = u32::try_from(self.master).unwrap_or(u32::MAX);
        let mut bytes = identity.to_vec();
        bytes.extend(master.to_be_bytes());
        bytes.extend(self.cursor.to_be_bytes());
        bytes.push(self.is_scanned.into());
        for key in &self.held {
            bytes.extend(key.as_bytes());
        }
        bytes
    }
}

/// What each master tells under this name, by address.
async fn told(
    connections: &Connections,
    command: &redis::Cmd,
    name: &str,
) -> Result<Vec<(String, String)>, StoreError> {
    let answers = connections.ask_masters(command).await.map_err(failed)?;
    let told = answers.into_iter().map(|(address, answer)| {
        let text: String = redis::from_redis_value(answer)?;
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name));
        Ok((address, value.unwrap_or_default().to_owned()))
    });
    told.collect::<Result<_, RedisError>>().map_err(failed)
}

/// What the names of records look like to SCAN.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::new();
    for character in prefix.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern + ":{*}"
}
