use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;

use super::{Access, MemoryStore, entry::Moment};
use crate::{
    StoreError,
    store::{Counts, Cursor, ListRecords, Listed, Page, RecordState},
};

/// One shard after the other, so that requests get in between.
#[async_trait]
impl ListRecords for MemoryStore {
    async fn list_unsettled(
        &self,
        older_than: Duration,
        limit: u32,
        after: Option<&Cursor>,
    ) -> Result<Page, StoreError> {
        let after = after.map(Cursor::place).transpose()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut oldest = BTreeMap::new();
        for shard in &self.0.shards {
            let access = self.lock(shard);
            for listed in access.unsettled(older_than) {
                let place = (listed.record.fence, listed.key);
                if after.is_none_or(|after| place > after) {
                    oldest.insert(place, listed);
                }
                if oldest.len() > limit {
                    oldest.pop_last();
                }
            }
        }
        let records: Vec<Listed> = oldest.into_values().collect();
        let next = records.last().filter(|_| records.len() == limit);
        let next = next.map(Cursor::behind);
        Ok(Page::new(records, next))
    }

    async fn count_records(&self) -> Result<Counts, StoreError> {
        let mut counts = Counts {
            response_bytes: Some(self.response_bytes() as u64),
            ..Counts::default()
        };
        for shard in &self.0.shards {
            self.lock(shard).count(&mut counts);
        }
        Ok(counts)
    }
}

impl Access<'_> {
    fn unsettled(&self, older_than: Duration) -> impl Iterator<Item = Listed> {
        let now = self.now();
        self.records().filter_map(move |(key, entry)| {
            let age = age(now, entry.fence);
            let is_listed =
                entry.state.expires() > now && !entry.state.is_completed() && age >= older_than;
            is_listed.then(|| Listed::new(*key, age, entry.record(now)))
        })
    }

    fn count(&self, counts: &mut Counts) {
        let now = self.now();
        for (_, entry) in self.records() {
            *if entry.state.expires() <= now {
                &mut counts.expired
            } else if entry.state.is_completed() {
                &mut counts.completed
            } else if matches!(entry.record(now).state, RecordState::InFlight { .. }) {
                &mut counts.in_flight
            } else {
                &mut counts.unknown
            } += 1;
        }
    }
}

/// Since the claim that has this fence, which is the clock of then in microseconds.
fn age(now: Moment, fence: u64) -> Duration {
    now.saturating_sub(Duration::from_micros(fence))
}
