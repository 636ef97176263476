use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Claim, Record, Reservation, Terms};
use crate::{Fingerprint, Identity, RecordKey, SavedResponse, StoreError, Tag};

/// Where records live.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Claims the key, or tells why it can't be claimed.
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError>;

    /// Moves the end of the claim's lease to `lease` from now.
    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError>;

    /// Saves the response; from now on the key is answered from the record.
    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError>;

    /// Gives the key back: nothing happened, a retry runs.
    async fn release(&self, claim: &Claim) -> Result<(), StoreError>;

    /// Ends the claim without an outcome: whether anything happened is unknown.
    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError>;

    /// What is recorded under the key.
    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError>;

    /// Removes the record, whatever its state; an operator's decision.
    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError>;

    /// Removes at most `limit` expired records and tells how many.
    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError>;

    /// Tells whether the backend answers.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Which promise this store makes.
    fn kind(&self) -> StoreKind;

    /// Turns an identity into the fingerprint that this store compares.
    fn fingerprint(&self, identity: &Identity<'_>) -> Fingerprint {
        Fingerprint::of(identity)
    }

    /// The fingerprint of the same request in the form of a stored one, if it can be computed.
    fn fingerprint_as(&self, identity: &Identity<'_>, tag: Tag) -> Option<Fingerprint> {
        Fingerprint::in_form(identity, tag)
    }
}

/// The two kinds of store, which differ in what a crash leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKind {
    /// The claim is durable before the handler runs, and the response is saved after it.
    Lease,
    /// Key, business writes and response commit in one transaction.
    Transaction,
}

macro_rules! forward {
    ($($pointer:ident),*) => {$(
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<T: Store + ?Sized> Store for $pointer<T> {
            async fn reserve(&self, key: &RecordKey, fingerprint: &Fingerprint, terms: &Terms) -> Result<Reservation, StoreError> {
                (**self).reserve(key, fingerprint, terms).await
            }
            async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
                (**self).renew(claim, lease).await
            }
            async fn complete(&self, claim: &Claim, response: &SavedResponse, retention: Duration) -> Result<(), StoreError> {
                (**self).complete(claim, response, retention).await
            }
            async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
                (**self).release(claim).await
            }
            async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
                (**self).abandon(claim, retention).await
            }
            async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
                (**self).inspect(key).await
            }
            async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
                (**self).forget(key).await
            }
            async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
                (**self).purge_expired(limit).await
            }
            async fn ping(&self) -> Result<(), StoreError> {
                (**self).ping().await
            }
            fn kind(&self) -> StoreKind {
                (**self).kind()
            }
            fn fingerprint(&self, identity: &Identity<'_>) -> Fingerprint {
                (**self).fingerprint(identity)
            }
            fn fingerprint_as(&self, identity: &Identity<'_>, tag: Tag) -> Option<Fingerprint> {
                (**self).fingerprint_as(identity, tag)
            }
        }
    )*};
}

forward!(Arc, Box);
