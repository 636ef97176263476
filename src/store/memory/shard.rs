use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::Duration,
};

use super::entry::{Entry, Moment};
use crate::RecordKey;

/// A part of the records, and the order in which they expire.
///
/// Every record has exactly one entry in the queue that counts: the one for the moment that it calls `due`, which is never
/// later than its expiry. Others, of records that were removed or became due earlier, are stale, and dropped when met.
#[derive(Default)]
pub(super) struct Shard {
    records: HashMap<RecordKey, Entry>,
    queue: BinaryHeap<Reverse<(Moment, RecordKey)>>,
    last_fence: u64,
}

impl Shard {
    pub(super) fn get(&self, key: &RecordKey) -> Option<&Entry> {
        self.records.get(key)
    }

    pub(super) fn records(&self) -> impl Iterator<Item = (&RecordKey, &Entry)> {
        self.records.iter()
    }

    pub(super) fn insert(&mut self, key: &RecordKey, entry: Entry) {
        self.queue.push(Reverse((entry.due, *key)));
        self.records.insert(*key, entry);
        self.drop_stale();
    }

    /// Changes a record, and sees to it that it is due by the time that it then expires.
    pub(super) fn update(&mut self, key: &RecordKey, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.records.get_mut(key) else {
            return;
        };
        change(entry);
        let expires = entry.state.expires();
        if expires < entry.due {
            entry.due = expires;
            self.queue.push(Reverse((expires, *key)));
            self.drop_stale();
        }
    }

    pub(super) fn remove(&mut self, key: &RecordKey) -> Option<Entry> {
        let removed = self.records.remove(key);
        self.drop_stale();
        removed
    }

    /// Takes the next entry off the queue, if it is due: the record that expired and was removed,
    /// or nothing but the step taken, where the record lives on or the entry was stale.
    pub(super) fn step(&mut self, now: Moment) -> Option<Step> {
        let Reverse((due, key)) = *self.queue.peek().filter(|next| next.0.0 <= now)?;
        self.queue.pop();
        let Some(entry) = self.records.get_mut(&key).filter(|entry| entry.due == due) else {
            return Some(Step::Stale);
        };
        let expires = entry.state.expires();
        if expires > now {
            entry.due = expires;
            self.queue.push(Reverse((expires, key)));
            return Some(Step::LivesOn);
        }
        Some(self.remove(&key).map_or(Step::Stale, Step::Expired))
    }

    /// A fence larger than all before it in this shard, and not below the clock.
    ///
    /// One counter for the whole shard: the fence of a key then also grows when its record is gone
    /// and the clock did not move since.
    pub(super) fn next_fence(&mut self, now: Moment) -> u64 {
        let clock = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        self.last_fence = self.last_fence.saturating_add(1).max(clock);
        self.last_fence
    }

    /// Rebuilds the queue when most of it is stale, which keys that are claimed and released over and over would bring about.
    /// The cost is that of the calls that made it stale.
    fn drop_stale(&mut self) {
        if self.queue.len() > 2 * self.records.len() + 64 {
            self.queue = self
                .records
                .iter()
                .map(|(key, entry)| Reverse((entry.due, *key)))
                .collect();
        }
    }
}

/// What became of one due entry of the queue.
pub(super) enum Step {
    Expired(Entry),
    LivesOn,
    Stale,
}

/// When a new claim is due: when it would expire if its run completed at once, so that a completion,
/// which mostly comes with the same retention, need not queue it again.
pub(super) fn first_due(now: Moment, retention: Duration) -> Moment {
    now.saturating_add(retention)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Fingerprint, Tag,
        store::{Claim, Nonce, memory::entry::State},
    };

    const HOUR: Duration = Duration::from_secs(3600);

    fn insert(shard: &mut Shard, number: u8, expires: Moment) -> RecordKey {
        let key = RecordKey::from_bytes([number; 32]);
        let fingerprint = Fingerprint::new(Tag::from_u16(0x0101), [0; 32]);
        let claim = Claim::new(key, fingerprint, Nonce::random(), 1, 1);
        shard.insert(
            &key,
            Entry::new(&claim, State::Abandoned { expires }, expires),
        );
        key
    }

    #[test]
    fn live_records_are_not_looked_at() {
        let mut shard = Shard::default();
        for number in 0..100 {
            insert(&mut shard, number, HOUR);
        }
        assert!(shard.step(HOUR - Duration::from_nanos(1)).is_none());
        assert!(matches!(shard.step(HOUR), Some(Step::Expired(_))));
    }

    #[test]
    fn released_keys_leave_nothing_behind() {
        let mut shard = Shard::default();
        let kept = insert(&mut shard, 0, HOUR * 2);
        for _ in 0..10_000 {
            let key = insert(&mut shard, 1, HOUR);
            shard.remove(&key);
            assert!(shard.queue.len() <= 2 * shard.records.len() + 64);
        }
        while shard.step(HOUR * 2).is_some() {}
        assert!(shard.get(&kept).is_none());
        assert!(shard.queue.is_empty());
    }

    #[test]
    fn a_record_that_expires_earlier_than_it_was_to_is_due_then() {
        let mut shard = Shard::default();
        let key = insert(&mut shard, 0, HOUR * 2);
        shard.update(&key, |entry| {
            entry.state = State::Abandoned { expires: HOUR }
        });
        assert!(matches!(shard.step(HOUR), Some(Step::Expired(_))));
        assert!(matches!(shard.step(HOUR * 2), Some(Step::Stale)));
    }

    #[test]
    fn a_record_that_expires_later_than_it_was_to_lives_on_with_one_entry_in_the_queue() {
        let mut shard = Shard::default();
        let key = insert(&mut shard, 0, HOUR);
        for hours in 2..100 {
            let expires = HOUR * hours;
            shard.update(&key, |entry| entry.state = State::Abandoned { expires });
        }
        assert!(matches!(shard.step(HOUR), Some(Step::LivesOn)));
        assert!(shard.step(HOUR * 98).is_none());
        assert_eq!(shard.queue.len(), 1);
        assert!(matches!(shard.step(HOUR * 99), Some(Step::Expired(_))));
    }
}
