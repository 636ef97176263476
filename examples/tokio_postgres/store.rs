use std::time::Duration;

use async_trait::async_trait;
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{Claim, Record, Reservation, Store, StoreKind, Terms},
};

use crate::{
    connections::Connections,
    lock::{try_lock, verify},
    record::{FORGET, PURGE, SCHEMA, answer, read},
    running::Running,
    transaction::Transaction,
    tx::{Slot, take_back},
};

/// A transaction store over tokio-postgres.
#[derive(Clone, Debug)]
pub(crate) struct TransactionStore {
    connections: Connections,
    running: Running,
}

impl TransactionStore {
    /// Makes the table, if it isn't there.
    pub(crate) async fn new(connections: Connections) -> Result<Self, StoreError> {
        connections.batch_execute(SCHEMA).await?;
        let running = Running::default();
        Ok(Self {
            connections,
            running,
        })
    }
}

#[async_trait]
impl Store for TransactionStore {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        let connection = self.connections.get().await?;
        let locked = try_lock(&connection, key, terms.run_limit()).await?;
        let found = read(&connection, key).await?;
        let reservation = match found.stored {
            Some((record, _)) => answer(record, fingerprint),
            None if locked => {
                let slot = Slot::new(Transaction {
                    connection,
                    retention: terms.retention(),
                    _running: self.running.enter(key, fingerprint),
                });
                // The fence is the clock as it was read under the lock: later than that of any claim before.
                let claim = Claim::new(*key, *fingerprint, terms.nonce(), 1, found.clock);
                return Ok(Reservation::Acquired(claim.with_attachment(slot)));
            }
            None => self.running.answer(key, fingerprint),
        };
        connection.roll_back().await;
        Ok(reservation)
    }

    async fn renew(&self, _claim: &Claim, _lease: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        match take_back(claim)? {
            Some(transaction) => transaction.commit(claim, response, retention).await,
            None => verify(&self.connections, claim).await,
        }
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        match take_back(claim)? {
            Some(transaction) => transaction.undo(claim).await,
            None => match verify(&self.connections, claim).await {
                Ok(()) => Err(StoreErrorKind::LostClaim.into()),
                Err(error) if error.kind() == StoreErrorKind::RolledBack => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    async fn abandon(&self, claim: &Claim, _retention: Duration) -> Result<(), StoreError> {
        self.release(claim).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        let connection = self.connections.get().await?;
        let found = read(&connection, key).await?;
        connection.reuse();
        Ok(found.stored.map(|(record, _)| record))
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        let key = key.as_bytes().as_slice();
        Ok(self.connections.execute(FORGET, &[&key]).await? == 1)
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
        self.connections.execute(PURGE, &[&i64::from(limit)]).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.connections.execute("SELECT 1", &[]).await.map(drop)
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Transaction
    }
}
