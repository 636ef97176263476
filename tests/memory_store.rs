//! What the memory store promises beyond the contract: bounds, room, and counts that don't drift.
#![cfg(feature = "memory")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "whatever else is answered is wrong"
)]

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::{task::JoinSet, time::advance};
use tower_idempotency::{
    Fingerprint, MemoryStore, RecordKey, SavedResponse, StoreErrorKind, Tag,
    store::{Claim, Nonce, RecordState, Reservation, Store, Terms},
};

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn at_the_entry_bound_new_keys_are_refused_and_known_ones_answered() {
    let store = MemoryStore::new().with_max_entries(2);
    let claim = acquire(&store, 1).await;
    store.complete(&claim, &body(10), RETENTION).await.unwrap();
    acquire(&store, 2).await;
    assert!(is_full(&store, 3).await);
    assert!(is_full(&store, 3).await);
    assert_eq!(store.len(), 2);
    assert!(
        matches!(reserve(&store, 1).await, Reservation::Replay { response: saved, .. } if saved == body(10))
    );
    assert!(matches!(
        reserve(&store, 2).await,
        Reservation::InFlight { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn a_released_or_expired_record_makes_room() {
    let store = MemoryStore::new().with_max_entries(100);
    let released = acquire(&store, 0).await;
    for number in 1..100 {
        acquire(&store, number).await;
    }
    assert!(is_full(&store, 100).await);
    store.release(&released).await.unwrap();
    acquire(&store, 100).await;
    assert!(is_full(&store, 101).await);

    // No call has touched most shards since their records expired; the room must be found all the same.
    advance(LEASE + RETENTION).await;
    for number in 200..300 {
        acquire(&store, number).await;
    }
    assert_eq!(store.len(), 100);

    let store = MemoryStore::new().with_max_entries(1);
    acquire(&store, 1).await;
    advance(LEASE + RETENTION).await;
    acquire(&store, 2).await;
    assert_eq!(store.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn at_the_byte_bound_a_tombstone_is_kept_until_there_is_room() {
    let store = MemoryStore::new().with_max_bytes(1000);
    for (number, size) in [(1, 600), (2, 401), (3, 400), (4, 1)] {
        let claim = acquire(&store, number).await;
        store
            .complete(&claim, &body(size), RETENTION)
            .await
            .unwrap();
    }
    assert_eq!(store.response_bytes(), 1000);
    for (number, expected) in [
        (1, body(600)),
        (2, SavedResponse::tombstone()),
        (3, body(400)),
        (4, SavedResponse::tombstone()),
    ] {
        assert!(
            matches!(reserve(&store, number).await, Reservation::Replay { response: saved, .. } if saved == expected)
        );
    }
    assert!(store.forget(&key(1)).await.unwrap());
    let claim = acquire(&store, 5).await;
    store.complete(&claim, &body(600), RETENTION).await.unwrap();
    assert!(
        matches!(reserve(&store, 5).await, Reservation::Replay { response: saved, .. } if saved == body(600))
    );
}

/// A buffer that tells whether anything still holds it.
struct Buffer(Vec<u8>, #[expect(dead_code, reason = "counted")] Arc<()>);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[tokio::test]
async fn what_is_kept_holds_no_buffer_that_it_was_cut_from() {
    let (store, held) = (MemoryStore::new(), Arc::new(()));
    let buffer = Bytes::from_owner(Buffer(vec![b'x'; 1 << 20], Arc::clone(&held)));
    let mut value = HeaderValue::from_maybe_shared(buffer.slice(..8)).unwrap();
    value.set_sensitive(true);
    let fields = HeaderMap::from_iter([(header::ETAG, value)]);
    let cut = SavedResponse::new(
        StatusCode::OK,
        fields.clone(),
        buffer.slice(..8),
        Some(fields),
    );
    drop(buffer);
    let claim = acquire(&store, 0).await;
    store.complete(&claim, &cut, RETENTION).await.unwrap();
    let Reservation::Replay { response: kept, .. } = reserve(&store, 0).await else {
        panic!("not kept");
    };
    assert_eq!(kept, cut);
    assert!(kept.headers().unwrap()[header::ETAG].is_sensitive());
    drop(cut);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test(start_paused = true)]
async fn a_finished_run_whose_record_was_lost_is_kept_beyond_the_bound() {
    let store = MemoryStore::new().with_max_entries(1);
    let claim = acquire(&store, 1).await;
    assert!(store.forget(&key(1)).await.unwrap());
    acquire(&store, 2).await;
    store.complete(&claim, &body(1), RETENTION).await.unwrap();
    assert!(matches!(
        reserve(&store, 1).await,
        Reservation::Replay { .. }
    ));
    assert_eq!(store.len(), 2);
    assert!(is_full(&store, 3).await);
}

#[tokio::test(start_paused = true)]
async fn lease_and_retention_end_to_the_nanosecond() {
    let nanosecond = Duration::from_nanos(1);
    let store = MemoryStore::new();
    acquire(&store, 1).await;
    advance(LEASE - nanosecond).await;
    assert!(
        matches!(reserve(&store, 1).await, Reservation::InFlight { retry_after, .. } if retry_after == nanosecond)
    );
    advance(nanosecond).await;
    assert!(matches!(reserve(&store, 1).await, Reservation::Unknown));
    advance(RETENTION - nanosecond).await;
    assert!(matches!(reserve(&store, 1).await, Reservation::Unknown));
    advance(nanosecond).await;
    let claim = acquire(&store, 1).await;
    store.complete(&claim, &body(1), RETENTION).await.unwrap();
    advance(RETENTION - nanosecond).await;
    assert!(matches!(
        reserve(&store, 1).await,
        Reservation::Replay { .. }
    ));
    advance(nanosecond).await;
    acquire(&store, 1).await;
}

#[tokio::test(start_paused = true)]
async fn the_longest_durations_neither_panic_nor_expire() {
    let store = MemoryStore::new();
    let terms = Terms::new(Nonce::random(), Duration::MAX, Duration::MAX);
    let reservation = store.reserve(&key(1), &FINGERPRINT, &terms).await.unwrap();
    let Reservation::Acquired(claim) = reservation else {
        panic!("{reservation:?}");
    };
    store.renew(&claim, Duration::MAX).await.unwrap();
    advance(RETENTION).await;
    assert!(matches!(
        reserve(&store, 1).await,
        Reservation::InFlight { .. }
    ));
    store
        .complete(&claim, &body(1), Duration::MAX)
        .await
        .unwrap();
    advance(RETENTION).await;
    assert!(matches!(
        reserve(&store, 1).await,
        Reservation::Replay { .. }
    ));
}

/// Whoever compares fences outlives the process, and the store.
#[tokio::test(start_paused = true)]
async fn the_fence_is_no_less_than_the_time_of_day() {
    let clock = SystemTime::UNIX_EPOCH
        .elapsed()
        .expect("a clock that is set");
    let fence = acquire(&MemoryStore::new(), 1).await.fence();
    assert!(u128::from(fence) >= clock.as_micros(), "{fence}");
}

#[tokio::test(start_paused = true)]
async fn the_fence_grows_while_the_clock_stands_still() {
    let store = MemoryStore::new();
    let first = acquire(&store, 0).await.fence();
    let mut last = 0;
    for _ in 0..100 {
        let claim = acquire(&store, 1).await;
        assert!(claim.fence() > last);
        last = claim.fence();
        store.release(&claim).await.unwrap();
    }
    advance(RETENTION).await;
    let clock = u64::try_from(RETENTION.as_micros()).unwrap();
    assert!(acquire(&store, 1).await.fence() >= first + clock);
}

#[tokio::test(start_paused = true)]
async fn purging_takes_its_limit_of_what_expired_and_no_call_more_than_a_few() {
    let store = MemoryStore::new();
    for number in 0..1000 {
        let claim = acquire(&store, number).await;
        // Earlier than the retention that the claim came with.
        store.complete(&claim, &body(1), LEASE).await.unwrap();
    }
    for number in 1000..1010 {
        acquire(&store, number).await;
    }
    assert_eq!(store.purge_expired(u32::MAX).await.unwrap(), 0);
    advance(LEASE).await;
    assert_eq!(store.purge_expired(0).await.unwrap(), 0);
    assert_eq!(store.purge_expired(100).await.unwrap(), 100);
    assert_eq!(store.len(), 910);
    assert!(store.inspect(&key(5000)).await.unwrap().is_none());
    assert!((907..910).contains(&store.len()), "{store:?}");
    let left = store.len() as u64;
    assert_eq!(store.purge_expired(u32::MAX).await.unwrap(), left - 10);
    assert_eq!((store.len(), store.response_bytes()), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn every_call_answers_on_its_first_poll() {
    let store = MemoryStore::new();
    let claim = acquire(&store, 1).await;
    at_once(store.reserve(&key(2), &FINGERPRINT, &terms())).unwrap();
    at_once(store.renew(&claim, LEASE)).unwrap();
    at_once(store.complete(&claim, &body(1), RETENTION)).unwrap();
    at_once(store.release(&claim)).unwrap_err();
    at_once(store.abandon(&claim, RETENTION)).unwrap_err();
    at_once(store.inspect(&key(1))).unwrap();
    at_once(store.forget(&key(1))).unwrap();
    at_once(store.purge_expired(1)).unwrap();
    at_once(store.ping()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_live_keys_are_held_and_answered() {
    let store = MemoryStore::new().with_max_entries(100_000);
    let (fingerprint, terms) = (FINGERPRINT, terms());
    for number in 0..100_000 {
        at_once(store.reserve(&key(number), &fingerprint, &terms)).unwrap();
    }
    assert!(is_full(&store, 100_000).await);
    assert!(matches!(
        reserve(&store, 0).await,
        Reservation::InFlight { .. }
    ));
    assert_eq!(store.len(), 100_000);
}

/// Every call in random order on a few keys, with time going by, against the plainest possible count.
#[tokio::test(start_paused = true)]
async fn counts_do_not_drift() {
    let store = MemoryStore::new().with_max_entries(40).with_max_bytes(2000);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut claims: HashMap<u32, Claim> = HashMap::new();
    for step in 0..20_000 {
        let number = random.below(50);
        let duration = Duration::from_secs(u64::from(random.below(20)));
        let claim = claims.get(&number).cloned();
        match (random.below(9), claim) {
            (0..3, _) | (3..7, None) => {
                let terms = Terms::new(Nonce::random(), duration, duration * 2);
                let reservation = store.reserve(&key(number), &FINGERPRINT, &terms).await;
                if let Ok(Reservation::Acquired(claim)) = reservation {
                    claims.insert(number, claim);
                }
            }
            (3, Some(claim)) => drop(store.renew(&claim, duration).await),
            (4, Some(claim)) => {
                let size = random.below(200) as usize;
                drop(store.complete(&claim, &body(size), duration * 2).await);
            }
            (5, Some(claim)) => drop(store.release(&claim).await),
            (6, Some(claim)) => drop(store.abandon(&claim, duration).await),
            (7, _) => drop(store.forget(&key(number)).await.unwrap()),
            _ => advance(duration / 10).await,
        }
        if step % 100 == 0 {
            assert_eq!(purged_and_counted(&store).await, held(&store, 50).await);
        }
    }
    advance(Duration::from_secs(1000)).await;
    assert_eq!(purged_and_counted(&store).await, (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_keys_under_load_run_once_each() {
    const KEYS: u32 = 10_000;
    let store = MemoryStore::new();
    let runs: Arc<Vec<AtomicUsize>> = Arc::new((0..KEYS).map(|_| AtomicUsize::new(0)).collect());
    let mut clients = JoinSet::new();
    for client in 0..8 {
        let (store, runs) = (store.clone(), Arc::clone(&runs));
        clients.spawn(async move {
            // Each client starts elsewhere, and half of them go backwards, so that they meet in the middle of calls.
            for step in 0..KEYS {
                let step = if client % 2 == 0 {
                    step
                } else {
                    KEYS - 1 - step
                };
                let number = (step + client / 2 * (KEYS / 4)) % KEYS;
                if let Reservation::Acquired(claim) = reserve(&store, number).await {
                    runs[number as usize].fetch_add(1, Ordering::Relaxed);
                    store.complete(&claim, &body(3), RETENTION).await.unwrap();
                }
            }
        });
    }
    clients.join_all().await;
    assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
    assert_eq!(store.len(), KEYS as usize);
    assert_eq!(store.response_bytes(), 3 * KEYS as usize);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keys_that_are_claimed_and_released_under_load_leave_nothing_behind() {
    let store = MemoryStore::new();
    let holders = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let (store, holders) = (store.clone(), Arc::clone(&holders));
        clients.spawn(async move {
            for _ in 0..5_000 {
                if let Reservation::Acquired(claim) = reserve(&store, 1).await {
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    assert_eq!(holders.fetch_sub(1, Ordering::SeqCst), 1);
                    store.release(&claim).await.unwrap();
                }
            }
        });
    }
    clients.join_all().await;
    assert!(store.is_empty());
}

const FINGERPRINT: Fingerprint = Fingerprint::new(Tag::from_u16(0x0101), [7; 32]);

fn key(number: u32) -> RecordKey {
    // Spread over the shards as digests are, by the first byte.
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    RecordKey::from_bytes(bytes)
}

fn terms() -> Terms {
    Terms::new(Nonce::random(), LEASE, RETENTION)
}

async fn reserve(store: &MemoryStore, number: u32) -> Reservation {
    store
        .reserve(&key(number), &FINGERPRINT, &terms())
        .await
        .unwrap()
}

async fn acquire(store: &MemoryStore, number: u32) -> Claim {
    match reserve(store, number).await {
        Reservation::Acquired(claim) => claim,
        other => panic!("key {number} is taken: {other:?}"),
    }
}

/// Whether a new key is refused for want of room.
async fn is_full(store: &MemoryStore, number: u32) -> bool {
    let refused = store.reserve(&key(number), &FINGERPRINT, &terms()).await;
    refused.is_err_and(|error| error.kind() == StoreErrorKind::Full)
}

/// A response that counts for as many bytes as its body has.
fn body(size: usize) -> SavedResponse {
    let body = Bytes::from(vec![b'x'; size]);
    SavedResponse::new(StatusCode::OK, HeaderMap::new(), body, None)
}

fn at_once<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the call waits"),
    }
}

async fn purged_and_counted(store: &MemoryStore) -> (usize, usize) {
    store.purge_expired(u32::MAX).await.unwrap();
    (store.len(), store.response_bytes())
}

/// Entries and bytes, by looking at each key there can be.
async fn held(store: &MemoryStore, keys: u32) -> (usize, usize) {
    let (mut entries, mut bytes) = (0, 0);
    for number in 0..keys {
        if let Some(record) = store.inspect(&key(number)).await.unwrap() {
            entries += 1;
            if let RecordState::Completed(response) = record.state {
                bytes += response.body().map_or(0, Bytes::len);
            }
        }
    }
    (entries, bytes)
}

/// The same numbers in every run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 32) % u64::from(bound)).unwrap()
    }
}
