use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Record, Store};
#[cfg(any(feature = "memory", feature = "_sql"))]
use crate::StoreErrorKind;
use crate::{RecordKey, StoreError};

/// What an operator asks a store besides single keys: which runs hang or ended without an outcome, and how much there is.
///
/// A trait of its own, as not every backend can look at its records without a key. The stores of this crate can. The layer never
/// calls it.
///
/// # What it costs
///
/// The stores of this crate look at every record that they have: an index on the state would have to be paid for by every request, to
/// serve a question that is asked a few times a year. Nothing is locked meanwhile, so that requests go on. A SQL store over a
/// network gives its database 30 seconds for one call; on SQLite there is no limit. `RedisStore` walks over all names of its server,
/// those of others as well, in small steps.
///
/// # Contract
///
/// As for [`Store`], with the checks in `conformance::listing` (kinds `lease_listing` and `transaction_listing` of
/// `conformance_tests!`).
///
/// - L1. *lease* `an_unsettled_record_is_listed`: running, lapsed or abandoned, as [`inspect`](Store::inspect) tells of it.
/// - L2. *lease* `an_age_counts_from_the_last_claim`: only records that are at least as old are listed.
/// - L3. *all* `a_settled_key_is_not_listed`: completed, released, forgotten or expired.
/// - L4. *lease* `pages_miss_no_record`: a page has `limit` records at most, and all pages together have each record that is there
///   all the time: once, or more than once from a store that says so, as `RedisStore` does.
/// - L5. *all* `completed_records_are_counted`, with the bytes of their responses, and
/// - L6. *lease* `unsettled_records_are_counted`: by how they stand.
///
/// What runs on a transaction store of this crate is not in its table, so it is neither listed nor counted: the database shows
/// it as an open transaction. Its only unsettled records are of handlers that ended their transaction by themselves.
///
/// ```
/// use std::time::Duration;
///
/// use tower_idempotency::{StoreError, store::{Listed, ListRecords}};
///
/// async fn older_than(store: &dyn ListRecords, age: Duration) -> Result<Vec<Listed>, StoreError> {
///     let (mut found, mut next) = (Vec::new(), None);
///     loop {
///         let page = store.list_unsettled(age, 100, next.as_ref()).await?;
///         found.extend(page.records);
///         next = page.next;
///         if next.is_none() {
///             return Ok(found);
///         }
///     }
/// }
/// # let store = tower_idempotency::MemoryStore::new();
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # assert!(runtime.block_on(older_than(&store, Duration::ZERO)).unwrap().is_empty());
/// ```
///
/// # Cancel safety
///
/// As for [`Store`]: nothing is written, but a call that is dropped may leave a connection in the middle of a statement.
///
/// # Errors
///
/// [`Unavailable`](crate::StoreErrorKind::Unavailable) and [`Other`](crate::StoreErrorKind::Other), as every call of a store.
#[async_trait]
pub trait ListRecords: Store {
    /// Unexpired records without an outcome whose last claim is at least `older_than` ago: a page of at most `limit`
    /// (0 lists nothing), after the one that gave this cursor (L1 to L4).
    ///
    /// The oldest come first, where a store can sort them; those of this crate do, except `RedisStore`. A page may have fewer records
    /// than `limit`, or none, and not be the last.
    ///
    /// # Errors
    ///
    /// Only those of every call; a cursor that is of another kind of store, or can't be followed any more, is
    /// [`Other`](crate::StoreErrorKind::Other).
    async fn list_unsettled(
        &self,
        older_than: Duration,
        limit: u32,
        after: Option<&Cursor>,
    ) -> Result<Page, StoreError>;

    /// How many records there are (L5, L6).
    ///
    /// # Errors
    ///
    /// Only those of every call.
    async fn count_records(&self) -> Result<Counts, StoreError>;
}

/// A part of what [`list_unsettled`](ListRecords::list_unsettled) finds.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Page {
    /// What it holds.
    pub records: Vec<Listed>,
    /// Where the next page begins. None if this is the last.
    pub next: Option<Cursor>,
}

impl Page {
    /// A page of these records.
    #[must_use]
    pub fn new(records: Vec<Listed>, next: Option<Cursor>) -> Self {
        Self { records, next }
    }
}

/// A record of a listing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// Whose record it is. The client's key can't be told from it.
    pub key: RecordKey,
    /// How long ago it was last claimed, by the backend's clock: the clock that the claim's fence was made of.
    pub age: Duration,
    /// As [`inspect`](Store::inspect) would tell it.
    pub record: Record,
}

impl Listed {
    /// A record as a store read it.
    #[must_use]
    pub fn new(key: RecordKey, age: Duration, record: Record) -> Self {
        Self { key, age, record }
    }
}

/// Where a page begins, in a form of the store's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Box<[u8]>);

impl Cursor {
    /// A cursor with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Behind this record, in the order of fences, which is that of claims.
    #[cfg(any(feature = "memory", feature = "_sql"))]
    pub(crate) fn behind(last: &Listed) -> Self {
        let fence = last.record.fence.to_be_bytes();
        Self([&fence[..], last.key.as_bytes()].concat().into())
    }

    /// The fence and the key of that record.
    #[cfg(any(feature = "memory", feature = "_sql"))]
    pub(crate) fn place(&self) -> Result<(u64, RecordKey), StoreError> {
        let place = self.0.split_first_chunk().and_then(|(fence, key)| {
            let key = key.try_into().ok()?;
            Some((u64::from_be_bytes(*fence), RecordKey::from_bytes(key)))
        });
        place.ok_or_else(|| StoreError::new(StoreErrorKind::Other, "the cursor is another store's"))
    }
}

/// How many records a store has, by how they stand. A store begins with the default, which counts none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// A run has the key. Always 0 in a transaction store of this crate.
    pub in_flight: u64,
    /// A run ended, or its lease did, without a known outcome.
    pub unknown: u64,
    /// Done, tombstones included.
    pub completed: u64,
    /// Expired and not purged yet: they count as absent, and take room. A released or forgotten record may be one of them.
    pub expired: u64,
    /// The bytes of all responses as they are stored, those of expired records included; none where that can't be told.
    pub response_bytes: Option<u64>,
}

macro_rules! forward {
    ($($pointer:ident),*) => {$(
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<T: ListRecords + ?Sized> ListRecords for $pointer<T> {
            async fn list_unsettled(
                &self,
                older_than: Duration,
                limit: u32,
                after: Option<&Cursor>,
            ) -> Result<Page, StoreError> {
                (**self).list_unsettled(older_than, limit, after).await
            }
            async fn count_records(&self) -> Result<Counts, StoreError> {
                (**self).count_records().await
            }
        }
    )*};
}

forward!(Arc, Box);
