//! What an operator finds without a key, and what a client is told of its key's end.

use std::time::Duration;

use tokio::time::Instant;
use tower::Layer;
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, Tag,
    defaults::EXPIRY_HEADER,
    store::{Claim, Cursor, Nonce, RecordState, Reservation, Store, Terms},
};

use crate::{
    app::{created, handler},
    backends::{Backend, Transaction},
    sqlite_support::until,
    support::{Answer, Runs, post, send},
};

const HOUR: Duration = Duration::from_secs(3600);
const FINGERPRINT: Fingerprint = Fingerprint::new(Tag::from_u16(0x0101), [1; 32]);

pub async fn unsettled_runs_are_listed_oldest_first_and_everything_is_counted(backend: Backend) {
    let Some(store) = backend.listing.as_deref() else {
        return;
    };
    let first = claim(store, 4).await;
    end_without_outcome(&backend, &first).await;
    let running = match backend.is_transaction() {
        false => Some(claim(store, 3).await),
        // On SQLite it would keep the others from starting.
        true => None,
    };
    let last = claim(store, 2).await;
    end_without_outcome(&backend, &last).await;
    for (number, retention) in [(1, HOUR), (0, Duration::ZERO)] {
        let claim = claim(store, number).await;
        let tombstone = SavedResponse::tombstone();
        let completed = store.complete(&claim, &tombstone, retention).await;
        completed.expect("a database");
    }

    let running = match running {
        Some(running) => running,
        None => claim(store, 3).await,
    };

    let in_flight = u64::from(!backend.is_transaction());
    let counts = async || store.count_records().await.expect("a database");
    // At the very instant of its completion it may not have expired yet.
    until(async || counts().await.expired == 1).await;
    let counts = counts().await;
    assert_eq!(
        (counts.in_flight, counts.unknown, counts.completed),
        (in_flight, 2, 1)
    );
    assert!(counts.response_bytes.is_some());

    let expected: &[(&Claim, bool)] = if backend.is_transaction() {
        &[(&first, false), (&last, false)]
    } else {
        &[(&first, false), (&running, true), (&last, false)]
    };
    let (mut after, mut found) = (None, Vec::new());
    for page in 0..=expected.len() {
        let listed = store
            .list_unsettled(Duration::ZERO, 1, after.as_ref())
            .await;
        let listed = listed.expect("a database");
        assert_eq!(listed.records.len(), usize::from(page < expected.len()));
        found.extend(listed.records);
        after = listed.next;
    }
    assert_eq!(after, None);
    for (listed, (claim, is_running)) in found.iter().zip(expected) {
        assert_eq!(listed.key, *claim.key());
        assert_eq!(listed.record.fence, claim.fence());
        let running = matches!(listed.record.state, RecordState::InFlight { .. });
        assert_eq!(running, *is_running);
    }
    let foreign = Cursor::from_bytes(*b"another store's");
    let refused = store.list_unsettled(HOUR, 1, Some(&foreign)).await;
    refused.expect_err("a cursor that can't be read");
    store.release(&running).await.expect("a database");
}

pub async fn a_replay_tells_what_is_left_of_the_retention(backend: Backend) {
    let layer = backend.layer().with_retention(HOUR);
    let layer = layer.with_expiry_header(EXPIRY_HEADER);
    let service = layer.layer(handler(&Runs::default(), None, created));
    let first = send(&service, post("k", "{}")).await;
    // Less the time that saving took.
    assert!((3000..3600).contains(&seconds(&first)), "{first:?}");
    let replay = send(&service, post("k", "{}")).await;
    assert!(replay.is_replay());
    assert!((3000..=3600).contains(&seconds(&replay)), "{replay:?}");
}

fn seconds(answer: &Answer) -> u64 {
    let value = answer.head.headers.get(EXPIRY_HEADER).expect("the header");
    value.to_str().expect("digits").parse().expect("a number")
}

/// Later than all claims before, by the coarsest clock.
async fn claim(store: &dyn Store, number: u8) -> Claim {
    let later = Instant::now() + Duration::from_millis(3);
    until(async || Instant::now() >= later).await;
    let terms = Terms::new(Nonce::random(), HOUR, HOUR);
    let key = RecordKey::from_bytes([number; 32]);
    match store.reserve(&key, &FINGERPRINT, &terms).await {
        Ok(Reservation::Acquired(claim)) => claim,
        other => panic!("not acquired: {other:?}"),
    }
}

/// On a transaction store only a handler can do that, by a `COMMIT` of its own.
async fn end_without_outcome(backend: &Backend, claim: &Claim) {
    match Transaction::take(claim.attachments()) {
        Some(transaction) => {
            transaction.commit().await;
            let misused = backend.store.release(claim).await;
            misused.expect_err("a transaction that has ended");
        }
        None => {
            let abandoned = backend.store.abandon(claim, HOUR).await;
            abandoned.expect("a database");
        }
    }
}
