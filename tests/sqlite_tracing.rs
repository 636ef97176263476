//! What the SQLite stores report. A binary of its own, for a subscriber that all threads share.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod sqlite_support;

use std::sync::{Arc, Mutex};

use sqlite_support::*;
use sqlx::Sqlite;
use tower_idempotency::{Tx, sqlite::TransactionStore, store::Store};

#[tokio::test]
async fn an_unused_transaction_is_reported_and_a_used_one_is_not() {
    let reports = Reports::default();
    tracing::subscriber::set_global_default(reports.clone()).unwrap();
    let file = File::wal();
    let store = TransactionStore::new(file.pool(1).await);
    store.migrate().await.unwrap();
    for (uses, expected) in [(true, 0), (false, 1)] {
        let claim = claim(&store, &fresh_key(), &terms()).await;
        if uses {
            drop(Tx::<Sqlite>::take(claim.attachments()).unwrap());
        }
        store
            .complete(&claim, &response("done"), RETENTION)
            .await
            .unwrap();
        assert_eq!(reports.0.lock().unwrap().len(), expected);
    }
    assert_eq!(reports.0.lock().unwrap()[0], tracing::Level::WARN);
}

/// The levels of this crate's events.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<tracing::Level>>>);

impl tracing::Subscriber for Reports {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("tower_idempotency")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        self.0.lock().unwrap().push(*event.metadata().level());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
