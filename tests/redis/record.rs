//! What a record is on the server: its name, its bytes, how long it lives; and what becomes of those that aren't ours.

use std::time::Duration;

use tower_idempotency::{
    Fingerprint, RecordKey, StoreErrorKind, Tag,
    store::{Claim, Nonce, Note, RecordState, Reservation, Steps, Store, Terms},
};

use crate::{
    redis_support::*,
    servers::{Redis, redis},
};

/// Of a claim, at its place, in the order of the documentation of the format.
fn head(state: u8, claim: &Claim, retention: Duration) -> Vec<u8> {
    let mut bytes = vec![1, state];
    bytes.extend(claim.attempt().to_be_bytes());
    bytes.extend(claim.fence().to_be_bytes());
    bytes.extend(u64::try_from(retention.as_millis()).unwrap().to_be_bytes());
    bytes.extend(claim.fingerprint().tag().to_u16().to_be_bytes());
    bytes.extend(claim.fingerprint().digest());
    bytes.extend(claim.nonce().as_bytes());
    bytes
}

fn lives_for(left: i64, time: Duration) -> bool {
    let time = i64::try_from(time.as_millis()).unwrap();
    (time - 5_000..=time).contains(&left)
}

#[tokio::test]
async fn a_record_is_one_string_that_lives_for_its_lease_and_retention() {
    let Some(server) = redis() else { return };
    let store = store_at(server.url());
    let key = fresh_key();

    let running = claim(&store, &key, &terms()).await;
    assert_eq!(stored(server, &key), head(0, &running, RETENTION));
    assert!(lives_for(left(server, &key), LEASE + RETENTION));

    store.renew(&running, LEASE * 2).await.unwrap();
    assert_eq!(stored(server, &key), head(0, &running, RETENTION));
    assert!(lives_for(left(server, &key), LEASE * 2 + RETENTION));

    let kept = RETENTION / 2;
    store
        .complete(&running, &response("done"), kept)
        .await
        .unwrap();
    let mut completed = head(1, &running, kept);
    completed.extend(response("done").encode());
    assert_eq!(stored(server, &key), completed);
    assert!(lives_for(left(server, &key), kept));

    let key = fresh_key();
    let abandoned = claim(&store, &key, &terms()).await;
    store.note(&abandoned, &Note::new("ab", "c")).await.unwrap();
    let note = b"\x01\x02ab\0\0\0\x01c";
    let running = [&head(0, &abandoned, RETENTION)[..], note].concat();
    assert_eq!(stored(server, &key), running);
    assert!(lives_for(left(server, &key), LEASE + RETENTION));
    store.abandon(&abandoned, kept).await.unwrap();
    let noted = [&head(2, &abandoned, kept)[..], note].concat();
    assert_eq!(stored(server, &key), noted);
    assert!(lives_for(left(server, &key), kept));

    let key = fresh_key();
    let released = claim(&store, &key, &terms()).await;
    store.release(&released).await.unwrap();
    assert_eq!(left(server, &key), -2);
}

#[tokio::test]
async fn a_record_of_a_release_with_the_first_format_is_read() {
    let Some(server) = redis() else { return };
    let store = store_at(server.url());
    let key = fresh_key();
    let fingerprint = Fingerprint::new(Tag::from_u16(0x0101), [1; 32]);
    let earlier = Claim::new(key, fingerprint, Nonce::from_bytes([9; 16]), 3, 77);
    put(server, &earlier);

    let record = store.inspect(&key).await.unwrap().unwrap();
    assert_eq!(
        (record.attempt, record.fence, record.fingerprint),
        (3, 77, fingerprint)
    );
    // It has less to live than its retention: the lease is over.
    assert!(matches!(record.state, RecordState::Unknown));
    let taken = claim(&store, &key, &run_again(terms())).await;
    assert_eq!(taken.attempt(), 4);
    assert!(taken.fence() > 77);
    assert_kind(
        store.renew(&earlier, LEASE).await,
        StoreErrorKind::LostClaim,
    );
}

/// Writes the record of a claim whose lease is over.
fn put(server: &Redis, claim: &Claim) {
    let text: String = head(0, claim, RETENTION)
        .iter()
        .map(|byte| format!("\\{byte:03}"))
        .collect();
    let script = format!("return redis.call('SET', KEYS[1], \"{text}\", 'PX', 60000)");
    let () = server
        .run(&["EVAL", &script, "1", &name_of(claim.key())])
        .unwrap();
}

#[tokio::test]
async fn a_key_in_flight_is_to_be_asked_for_again_within_a_second() {
    let Some(server) = redis() else { return };
    let (store, key) = (store_at(server.url()), fresh_key());
    claim(&store, &key, &terms()).await;
    match reserve(&store, &key).await {
        Reservation::InFlight { retry_after, .. } => {
            assert_eq!(retry_after, Duration::from_secs(1))
        }
        other => panic!("not in flight: {other:?}"),
    }
}

#[tokio::test]
async fn a_fence_grows_also_where_the_clock_of_the_server_was_set_back() {
    let Some(server) = redis() else { return };
    let store = store_at(server.url());
    // Of the year 2100.
    let (key, ahead) = (fresh_key(), 4_102_444_800_000_000);
    let earlier = Claim::new(key, fingerprint(1), Nonce::from_bytes([9; 16]), 1, ahead);
    put(server, &earlier);
    let taken = claim(&store, &key, &run_again(terms())).await;
    assert_eq!(taken.fence(), ahead + 1);
}

#[tokio::test]
async fn what_is_not_a_record_of_a_known_format_is_an_error_and_stays() {
    let Some(server) = redis() else { return };
    let store = store_at(server.url());
    // A later format, with more behind it, and where this one has the nonce of a running claim, that of this one; one that was cut; another type; an empty string is nothing that was ever written.
    let newer = format!("\\002\\000{}", "x".repeat(200));
    let strange = [
        format!("return redis.call('SET', KEYS[1], \"{newer}\", 'PX', 600000)"),
        "return redis.call('SET', KEYS[1], '\\001cut', 'PX', 600000)".to_owned(),
        "return redis.call('HSET', KEYS[1], 'field', 'value')".to_owned(),
    ];
    for script in strange {
        let key = fresh_key();
        let name = name_of(&key);
        let _written: redis::Value = server.run(&["EVAL", &script, "1", &name]).unwrap();
        let dump = || server.run::<Vec<u8>>(&["DUMP", &name]).unwrap();
        let before = dump();

        let nonce = Nonce::from_bytes([b'x'; 16]);
        let claim = Claim::new(key, fingerprint(1), nonce, 1, 1);
        let again = run_again(terms());
        assert_kind(
            store.reserve(&key, &fingerprint(1), &again).await,
            StoreErrorKind::Other,
        );
        assert_kind(store.renew(&claim, LEASE).await, StoreErrorKind::Other);
        assert_kind(
            store.complete(&claim, &response("x"), LEASE).await,
            StoreErrorKind::Other,
        );
        assert_kind(store.abandon(&claim, LEASE).await, StoreErrorKind::Other);
        assert_kind(store.release(&claim).await, StoreErrorKind::Other);
        assert_kind(store.inspect(&key).await, StoreErrorKind::Other);
        assert_eq!(dump(), before, "{script}");

        assert!(
            store.forget(&key).await.unwrap(),
            "an operator may remove it"
        );
        claim_is_free(&store, &key).await;
    }
}

async fn claim_is_free(store: &dyn Store, key: &RecordKey) {
    assert_eq!(claim(store, key, &terms()).await.attempt(), 1);
}

#[tokio::test]
async fn a_record_that_somebody_has_freed_of_its_expiry_protects_its_key() {
    let Some(server) = redis() else { return };
    let store = store_at(server.url());
    let (done, running) = (fresh_key(), fresh_key());
    let completed = claim(&store, &done, &terms()).await;
    store
        .complete(&completed, &response("done"), RETENTION)
        .await
        .unwrap();
    let claimed = claim(&store, &running, &terms()).await;
    for key in [&done, &running] {
        assert_eq!(server.run::<u32>(&["PERSIST", &name_of(key)]).unwrap(), 1);
    }

    assert_replays(&reserve(&store, &done).await, "done");
    let repeated = store
        .complete(&completed, &response("done"), RETENTION)
        .await;
    repeated.unwrap();
    assert_replays(&reserve(&store, &done).await, "done");
    assert!(lives_for(left(server, &done), RETENTION));
    // What is left of its lease is not known any more.
    assert!(matches!(
        reserve(&store, &running).await,
        Reservation::Unknown
    ));
    let record = store.inspect(&running).await.unwrap().unwrap();
    assert_eq!(record.expires_in, RETENTION);
    store
        .complete(&claimed, &response("late"), RETENTION)
        .await
        .unwrap();
    assert!(lives_for(left(server, &running), RETENTION));
}

#[tokio::test]
async fn times_below_a_millisecond_are_rounded_up() {
    let Some(server) = redis() else { return };
    let store = store_at(server.url());
    let key = fresh_key();
    let short = Terms::new(
        Nonce::random(),
        Duration::from_nanos(1),
        Duration::from_secs(60),
    );
    let claimed = claim(&store, &key, &short).await;
    store
        .renew(&claimed, Duration::from_nanos(1))
        .await
        .unwrap();
    store
        .complete(&claimed, &response("x"), Duration::from_micros(59_999_001))
        .await
        .unwrap();
    let retention = &stored(server, &key)[14..22];
    assert_eq!(retention, 60_000_u64.to_be_bytes());
}

#[tokio::test]
async fn the_longest_times_are_kept() {
    let Some(server) = redis() else { return };
    let store = store_at(server.url());
    let key = fresh_key();
    let decade = Duration::from_secs(10 * 366 * 24 * 60 * 60);
    let claimed = claim(&store, &key, &Terms::new(Nonce::random(), decade, decade)).await;
    assert!(lives_for(left(server, &key), decade * 2));
    store.renew(&claimed, decade).await.unwrap();
    assert!(lives_for(left(server, &key), decade * 2));
    store
        .complete(&claimed, &response("x"), decade)
        .await
        .unwrap();
    assert!(lives_for(left(server, &key), decade));
    assert!(store.forget(&key).await.unwrap());
}

#[tokio::test]
async fn times_that_no_server_can_keep_claim_nothing() {
    let Some(server) = redis() else { return };
    let store = store_at(server.url());
    let key = fresh_key();
    for (lease, retention) in [
        (Duration::MAX, RETENTION),
        (LEASE, Duration::MAX),
        (Duration::MAX, Duration::MAX),
        (LEASE, Duration::from_millis(u64::MAX)),
    ] {
        let terms = Terms::new(Nonce::random(), lease, retention);
        let refused = store.reserve(&key, &fingerprint(1), &terms).await;
        assert_kind(refused.map(drop), StoreErrorKind::Other);
        assert!(store.inspect(&key).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn stores_with_other_prefixes_have_other_records() {
    let Some(server) = redis() else { return };
    let (one, other) = (
        store_at(server.url()),
        store_at(server.url()).with_prefix("*other?"),
    );
    let key = fresh_key();
    claim(&one, &key, &terms()).await;
    claim(&other, &key, &terms()).await;
    let name = name_of(&key).replace("tower-idempotency", "*other?");
    assert_eq!(
        server
            .run::<u32>(&["EXISTS", &name, &name_of(&key)])
            .unwrap(),
        2
    );
    assert!(other.forget(&key).await.unwrap());
    assert!(matches!(
        reserve(&one, &key).await,
        Reservation::InFlight { .. }
    ));
}

#[test]
#[should_panic(expected = "with_prefix: no braces")]
fn a_prefix_has_no_braces() {
    drop(store_at("redis://127.0.0.1").with_prefix("a{b}"));
}

/// As if it had more left to live than its retention, which it hasn't as long as the clock goes on.
#[tokio::test]
async fn an_abandoned_claim_is_taken_over_also_where_the_clock_of_the_server_was_set_back() {
    let Some(server) = redis() else {
        return;
    };
    let (store, key) = (store_at(server.url()), fresh_key());
    let claimed = claim(&store, &key, &terms()).await;
    store.abandon(&claimed, RETENTION).await.unwrap();
    let longer = (RETENTION + LEASE).as_millis().to_string();
    server
        .run::<()>(&["PEXPIRE", &name_of(&key), &longer])
        .unwrap();
    let taken = claim(&store, &key, &run_again(terms())).await;
    assert_eq!(taken.attempt(), 2);
}

#[tokio::test]
async fn a_repeated_reservation_keeps_the_retention_of_the_first() {
    let Some(server) = redis() else {
        return;
    };
    let (store, key, nonce) = (store_at(server.url()), fresh_key(), Nonce::random());
    for retention in [RETENTION, RETENTION * 2] {
        claim(&store, &key, &Terms::new(nonce, LEASE, retention)).await;
    }
    let most = i64::try_from((LEASE + RETENTION).as_millis()).unwrap();
    assert!(left(server, &key) <= most);
}
