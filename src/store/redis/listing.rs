use std::time::Duration;

use async_trait::async_trait;
use redis::{Pipeline, RedisError, ServerError, Value};

use super::{
    RedisStore,
    connections::Message,
    error::failed,
    record::{HEAD, Stored},
    scan::Walk,
};
use crate::{
    RecordKey, StoreError,
    store::{Counts, Cursor, ListRecords, Listed, Page, RecordState},
};

/// How often a page asks for further names.
const STEPS: u32 = 200;

/// A record without its response.
struct Found {
    key: RecordKey,
    age: Duration,
    head: Stored,
    response_bytes: u64,
}

/// Without an order, and possibly one twice. Others' strings, and records of a later release, count as absent.
#[async_trait]
impl ListRecords for RedisStore {
    async fn list_unsettled(
        &self,
        older_than: Duration,
        limit: u32,
        after: Option<&Cursor>,
    ) -> Result<Page, StoreError> {
        if limit == 0 {
            return Ok(Page::default());
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut walk = Walk::new(&self.connections, &self.prefix, after).await?;
        let mut records = Vec::new();
        for _ in 0..STEPS {
            let Some(keys) = walk.step().await? else {
                break;
            };
            let found = self.find(walk.master(), &keys).await?;
            let unsettled = found
                .iter()
                .filter(|found| found.age >= older_than && !found.head.is_completed());
            let mut unsettled = unsettled
                .map(Found::listed)
                .collect::<Result<Vec<_>, _>>()?;
            let room = unsettled.len().min(limit - records.len());
            walk.put_back(unsettled.drain(room..).map(|listed| listed.key));
            records.append(&mut unsettled);
            if records.len() == limit {
                break;
            }
        }
        Ok(Page::new(records, walk.cursor()))
    }

    async fn count_records(&self) -> Result<Counts, StoreError> {
        let mut walk = Walk::new(&self.connections, &self.prefix, None).await?;
        let (mut counts, mut bytes) = (Counts::default(), 0);
        while let Some(keys) = walk.step().await? {
            for found in self.find(walk.master(), &keys).await? {
                if found.head.is_completed() {
                    counts.completed += 1;
                    bytes += found.response_bytes;
                } else if let RecordState::InFlight { .. } = found.head.record()?.state {
                    counts.in_flight += 1;
                } else {
                    counts.unknown += 1;
                }
            }
        }
        counts.response_bytes = Some(bytes);
        Ok(counts)
    }
}

impl RedisStore {
    /// The records of these keys, which this master had.
    async fn find(&self, master: &str, keys: &[RecordKey]) -> Result<Vec<Found>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut commands = redis::pipe();
        commands.cmd("TIME");
        for key in keys {
            let name = self.name(key);
            // What is left comes first: of a record that is settled between the two, the head tells.
            commands.cmd("PTTL").arg(&name);
            commands.cmd("GETRANGE").arg(&name).arg(0).arg(HEAD - 1);
            commands.cmd("STRLEN").arg(&name);
        }
        let message = Message::ToMaster(master, &commands);
        let answers = match self.connections.send(message).await {
            Err(error) if error.redirect_node().is_some() => self.send_each(&commands).await,
            answers => answers,
        };
        answers
            .and_then(|answers: Vec<Value>| read(keys, &answers))
            .map_err(failed)
    }

    /// Each to the master that its record is on by now. (A whole pipeline would be sent to and fro. The time is that of any of them.)
    async fn send_each(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let mut answers = Vec::with_capacity(commands.len());
        for command in commands.cmd_iter() {
            answers.push(
                match self.connections.send(Message::Command(command)).await {
                    Ok(answer) => answer,
                    Err(error) => Value::ServerError(ServerError::try_from(error)?),
                },
            );
        }
        Ok(answers)
    }
}

impl Found {
    fn listed(&self) -> Result<Listed, StoreError> {
        Ok(Listed::new(self.key, self.age, self.head.record()?))
    }
}

/// Those of the keys that have a record, by the time and three answers for each.
fn read(keys: &[RecordKey], answers: &[Value]) -> Result<Vec<Found>, RedisError> {
    let (time, answers) = answers.split_first().unwrap_or((&Value::Nil, &[]));
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(time)?;
    let now = Duration::from_secs(seconds) + Duration::from_micros(micros);
    let mut all = Vec::new();
    for (key, answers) in keys.iter().zip(answers.chunks_exact(3)) {
        let answer = Value::Array(answers.to_vec()).extract_error();
        let (left, head, length): (i64, Vec<u8>, u64) = match answer {
            Err(error) if error.code() == Some("WRONGTYPE") => continue,
            answer => redis::from_redis_value(answer?)?,
        };
        // Gone, or at the very instant of its expiry.
        if left == -2 || left == 0 {
            continue;
        }
        if let Ok(head) = Stored::read(left, head) {
            all.push(Found {
                key: *key,
                age: now.saturating_sub(head.claimed()),
                head,
                response_bytes: length.saturating_sub(HEAD as u64),
            });
        }
    }
    Ok(all)
}
