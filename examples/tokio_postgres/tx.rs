use std::{mem, ops::Deref, sync::Arc};

use axum::{
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};
use tokio_postgres::Client;
use tower_idempotency::{StoreError, StoreErrorKind, store::Claim};

use crate::transaction::Transaction;

/// Where a transaction waits for the handler to take it, and for the store to get it back. Attached to the claim, it comes
/// to the handler in the request's extensions; their clones are the same slot.
#[derive(Clone)]
pub(crate) struct Slot(Arc<Mutex<Place>>);

struct Place {
    transaction: Option<Transaction>,
    was_lent: bool,
}

/// The claim's transaction, unless it has ended. One that the handler still has is rolled back when it is dropped at last.
pub(crate) fn take_back(claim: &Claim) -> Result<Option<Transaction>, StoreError> {
    let Some(Slot(place)) = claim.attachments().get() else {
        return Ok(None);
    };
    if let Ok(mut place) = place.try_lock() {
        return Ok(place.transaction.take());
    }
    let (place, claim) = (Arc::clone(place), claim.clone());
    tokio::spawn(async move {
        let late = place.lock().await.transaction.take();
        if let Some(late) = late {
            drop(late.undo(&claim).await);
        }
    });
    Err(StoreErrorKind::Misused.into())
}

impl Slot {
    pub(crate) fn new(transaction: Transaction) -> Self {
        Self(Arc::new(Mutex::new(Place {
            transaction: Some(transaction),
            was_lent: false,
        })))
    }

    fn lend(&self) -> Option<Tx> {
        let mut place = Arc::clone(&self.0).try_lock_owned().ok()?;
        if mem::replace(&mut place.was_lent, true) {
            return None;
        }
        let lent = OwnedMutexGuard::try_map(place, |place| place.transaction.as_mut());
        lent.ok().map(Tx)
    }
}

/// The transaction in the handler's hands, once: a client that is inside of it. Drop it before the answer, or let it go
/// with the handler; the store commits with a 2xx or 3xx answer, and rolls back with any other.
///
/// No `DerefMut`, because `Client::transaction` would make a second transaction that is none: its `commit` would end ours.
/// A savepoint does what that is for.
pub(crate) struct Tx(OwnedMappedMutexGuard<Place, Transaction>);

impl Deref for Tx {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0.connection
    }
}

impl<S: Sync> FromRequestParts<S> for Tx {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        let slot = parts.extensions.get::<Slot>();
        slot.and_then(Slot::lend).ok_or((
            StatusCode::INTERNAL_SERVER_ERROR,
            "no transaction: the request has no idempotency key, or it was taken before",
        ))
    }
}
