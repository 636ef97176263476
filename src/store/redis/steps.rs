use async_trait::async_trait;

use super::{
    RedisStore,
    script::{NOTE, NOTES},
    store::was_its_own,
};
use crate::{
    StoreError, StoreErrorKind,
    store::{
        Claim, Note, Steps,
        notes::{decoded, encoded},
    },
};

#[async_trait]
impl Steps for RedisStore {
    async fn notes(&self, claim: &Claim) -> Result<Vec<Note>, StoreError> {
        let nonce = claim.nonce();
        let notes: Option<Vec<u8>> = self.call(&NOTES, claim.key(), &[nonce.as_bytes()]).await?;
        match notes {
            Some(notes) => decoded(&notes),
            None => Err(StoreErrorKind::LostClaim.into()),
        }
    }

    /// Sent again, as after a lost connection, it is there twice, which reads the same.
    async fn note(&self, claim: &Claim, note: &Note) -> Result<(), StoreError> {
        let (nonce, note) = (claim.nonce(), encoded(note)?);
        let arguments: [&[u8]; 2] = [nonce.as_bytes(), &note];
        let (answer, replicated) = self.call_replicated(&NOTE, claim.key(), &arguments).await?;
        was_its_own(answer).and(replicated)
    }
}
