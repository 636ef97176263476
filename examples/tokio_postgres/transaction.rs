use std::{sync::Arc, time::Duration};

use tokio_postgres::Client;
use tower_idempotency::{Fingerprint, SavedResponse, StoreError, StoreErrorKind, store::Claim};

use crate::{
    connections::Connection,
    error::{not_committed, was_ended},
    record::write,
};

/// Set before the handler runs: it is gone once the transaction has ended, however that happened.
pub(crate) const SAVEPOINT: &str = "SAVEPOINT tower_idempotency";
const RELEASE: &str = "RELEASE SAVEPOINT tower_idempotency";
const UNDO: &str = "ROLLBACK TO SAVEPOINT tower_idempotency; ROLLBACK";

/// An open transaction that holds its key's lock. Dropped, it is rolled back.
pub(crate) struct Transaction {
    pub(crate) connection: Connection,
    pub(crate) _running: Arc<Fingerprint>,
    /// How long to remember an unknown outcome.
    pub(crate) retention: Duration,
}

impl Transaction {
    /// Saves the response and commits.
    pub(crate) async fn commit(
        self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let connection = self.connection;
        let committed = async {
            connection.batch_execute(RELEASE).await?;
            // The last statement. If one of the handler's had failed this one does, while Postgres would answer `COMMIT` with
            // a rollback that is no error.
            let written = write(&connection, claim, Some(response), retention).await?;
            if written {
                connection.batch_execute("COMMIT").await?;
            }
            Ok(written)
        };
        match committed.await {
            Ok(true) => {
                connection.reuse();
                Ok(())
            }
            Ok(false) => {
                connection.roll_back().await;
                Err(StoreErrorKind::LostClaim.into())
            }
            Err(error) if was_ended(&error) => {
                save_unknown(connection, claim, self.retention).await;
                Err(StoreError::new(StoreErrorKind::Misused, error))
            }
            Err(error) => {
                connection.roll_back().await;
                Err(not_committed(error))
            }
        }
    }

    /// Rolls back, and says so if that wasn't possible any more.
    pub(crate) async fn undo(self, claim: &Claim) -> Result<(), StoreError> {
        match self.connection.batch_execute(UNDO).await {
            Ok(()) if !claim.interrupted() => {
                self.connection.reuse();
                Ok(())
            }
            Err(error) if was_ended(&error) => {
                save_unknown(self.connection, claim, self.retention).await;
                Err(StoreError::new(StoreErrorKind::Misused, error))
            }
            // A connection that is closed, or was lost, is rolled back, too.
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Who knows what a handler committed that ended the transaction: a retry must not run.
async fn save_unknown(connection: Connection, claim: &Claim, retention: Duration) {
    let client: &Client = &connection;
    let saved = async {
        client.batch_execute("ROLLBACK").await?;
        write(client, claim, None, retention).await
    };
    match saved.await {
        Ok(_) => connection.reuse(),
        Err(error) => eprintln!("the outcome of {:?} was lost: {error}", claim.key()),
    }
}
