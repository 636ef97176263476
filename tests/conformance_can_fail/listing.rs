use std::time::Duration;

use async_trait::async_trait;
use tower_idempotency::{
    StoreError,
    store::{Counts, Cursor, ListRecords, Listed, Page, Record, RecordState},
};

use crate::flawed::{Flaw, Flawed};

#[async_trait]
impl ListRecords for Flawed {
    async fn list_unsettled(
        &self,
        older_than: Duration,
        limit: u32,
        after: Option<&Cursor>,
    ) -> Result<Page, StoreError> {
        let (older_than, limit) = match self.flaw {
            Flaw::ListsWhateverAge => (Duration::ZERO, limit),
            Flaw::OverfillsPages => (older_than, limit.saturating_add(1)),
            _ => (older_than, limit),
        };
        let page = self.inner.list_unsettled(older_than, limit, after).await?;
        let Page {
            mut records, next, ..
        } = page;
        match self.flaw {
            Flaw::ListsNoLapsed => {
                records
                    .retain(|listed| matches!(listed.record.state, RecordState::InFlight { .. }));
            }
            Flaw::CountsFromTheFirstClaim => {
                for listed in records.iter_mut().filter(|found| found.record.attempt > 1) {
                    listed.age += Duration::from_secs(1);
                }
            }
            Flaw::ListsSettled if after.is_none() => records.extend(self.ever_claimed()),
            Flaw::SkipsTheLastOfAPage if next.is_some() => drop(records.pop()),
            Flaw::ListsTwice if records.len() < limit as usize => {
                records.extend(records.first().cloned());
            }
            _ => {}
        }
        Ok(Page::new(records, next))
    }

    async fn count_records(&self) -> Result<Counts, StoreError> {
        match self.flaw {
            Flaw::CountsNothing => Ok(Counts::default()),
            _ => self.inner.count_records().await,
        }
    }
}

impl Flawed {
    fn ever_claimed(&self) -> Vec<Listed> {
        let claims = self.claims();
        let listed = claims.iter().map(|(key, (claim, terms))| {
            let (fingerprint, state) = (*claim.fingerprint(), RecordState::Unknown);
            let record = Record::new(fingerprint, 1, claim.fence(), state, terms.retention());
            Listed::new(*key, Duration::ZERO, record)
        });
        listed.collect()
    }
}
