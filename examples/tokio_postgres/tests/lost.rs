use std::time::Duration;

use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreErrorKind, Tag,
    store::{Claim, Nonce, Reservation, Store, Terms},
};

use super::{Database, until};
use crate::{connections::Connections, store::TransactionStore};

const MINUTE: Duration = Duration::from_secs(60);

async fn acquire(store: &TransactionStore) -> Claim {
    let key = RecordKey::from_bytes([7; 32]);
    let fingerprint = Fingerprint::new(Tag::from_u16(0x0101), [7; 32]);
    let terms = Terms::new(Nonce::random(), MINUTE, MINUTE);
    let reserved = store.reserve(&key, &fingerprint, &terms).await;
    let Ok(Reservation::Acquired(claim)) = reserved else {
        unreachable!("not acquired: {reserved:?}");
    };
    claim
}

/// The same claim as it would be known if its transaction's connection were lost.
fn without_transaction(claim: &Claim) -> Claim {
    let (key, fingerprint) = (*claim.key(), *claim.fingerprint());
    Claim::new(key, fingerprint, claim.nonce(), 1, claim.fence())
}

#[tokio::test]
async fn what_became_of_a_lost_transaction_is_told_once_it_has_ended() {
    let Some(database) = Database::new().await else {
        return;
    };
    let store = database.store(4).await;
    let response = SavedResponse::tombstone();
    let claim = acquire(&store).await;
    let lost = without_transaction(&claim);

    let early = store.complete(&lost, &response, MINUTE).await;
    let kind = early.map_err(|error| error.kind());
    assert_eq!(kind, Err(StoreErrorKind::OutcomeUnknown));

    let completed = store.complete(&claim, &response, MINUTE).await;
    completed.expect("a commit");
    let verified = store.complete(&lost, &response, MINUTE).await;
    verified.expect("the same outcome");
    let released = store.release(&lost).await.map_err(|error| error.kind());
    assert_eq!(released, Err(StoreErrorKind::LostClaim));
}

#[tokio::test]
async fn a_transaction_whose_session_ended_was_rolled_back() {
    let Some(database) = Database::new().await else {
        return;
    };
    // One connection is enough: the lost one is given up before another is asked.
    let store = database.store(1).await;
    let response = SavedResponse::tombstone();
    let claim = acquire(&store).await;
    end_sessions(&database).await;

    let outcome = store.complete(&claim, &response, MINUTE).await;
    let kind = outcome.map_err(|error| error.kind());
    assert_eq!(kind, Err(StoreErrorKind::OutcomeUnknown));
    let asked_again = store.complete(&claim, &response, MINUTE).await;
    let kind = asked_again.map_err(|error| error.kind());
    assert_eq!(kind, Err(StoreErrorKind::RolledBack));
    acquire(&store).await;
}

#[tokio::test]
async fn another_claims_record_stays() {
    let Some(database) = Database::new().await else {
        return;
    };
    let store = database.store(1).await;
    let claim = acquire(&store).await;
    // Only somebody who doesn't take the lock can do this.
    let insert = "INSERT INTO idempotency SELECT decode(repeat('07', 32), 'hex'), 257, '', '', 1, NULL, 'infinity'";
    let inserted = database.connect().await.execute(insert, &[]).await;
    inserted.expect("a record");

    let response = SavedResponse::tombstone();
    let completed = store.complete(&claim, &response, MINUTE).await;
    let kind = completed.map_err(|error| error.kind());
    assert_eq!(kind, Err(StoreErrorKind::LostClaim));
    let fence = database.number("SELECT fence FROM idempotency").await;
    assert_eq!(fence, 1);
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_is_not_used_again() {
    let Some(database) = Database::new().await else {
        return;
    };
    let connections = Connections::new(database.config(), 1);
    let connection = connections.get().await.expect("a connection");
    end_sessions(&database).await;
    until("its end", async || connection.is_closed()).await;
    connection.reuse();
    let answered = connections.batch_execute("SELECT 1").await;
    answered.expect("a new connection");
}

/// As an administrator does, or a server that restarts.
async fn end_sessions(database: &Database) {
    let client = database.connect().await;
    let others =
        "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let count = async |what: &str| {
        let query = format!("SELECT count({what}) {others}");
        let row = client.query_one(&query, &[]);
        row.await.expect("a row").get::<_, i64>(0)
    };
    assert_ne!(count("pg_terminate_backend(pid)").await, 0);
    until("their end", async || count("*").await == 0).await;
}
