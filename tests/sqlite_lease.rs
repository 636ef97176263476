//! `sqlite::LeaseStore` on a database file. Effects are read through a second pool.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod sqlite_support;

use std::{error::Error as _, sync::Arc, time::Duration};

use sqlite_support::*;
use sqlx::{SqlitePool, sqlite::SqliteJournalMode};
use tokio::{sync::Barrier, task::JoinSet};
use tower_idempotency::{
    RecordKey, StoreErrorKind,
    sqlite::LeaseStore,
    store::{Nonce, Note, RecordState, Reservation, Steps, Store, Takeover, Terms},
};

async fn store_in(file: &File) -> LeaseStore {
    let store = LeaseStore::new(file.pool(4).await);
    store.migrate().await.unwrap();
    store
}

fn lapsing() -> Terms {
    Terms::new(Nonce::random(), INSTANT, RETENTION)
}

async fn until_lapsed(store: &LeaseStore, key: &RecordKey) {
    until(|| async {
        let record = store.inspect(key).await.unwrap().unwrap();
        matches!(record.state, RecordState::Unknown)
    })
    .await;
}

#[tokio::test]
async fn a_completed_claim_is_replayed_by_another_store_over_the_file() {
    let file = File::wal();
    let (store, other) = (store_in(&file).await, store_in(&file).await);
    let key = fresh_key();
    let claim = claim(&store, &key, &terms()).await;
    assert!(matches!(
        reserve(&other, &key).await,
        Reservation::InFlight { .. }
    ));
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&other, &key).await, "done");
    let mismatch = other
        .reserve(&key, &fingerprint(2), &terms())
        .await
        .unwrap();
    assert!(matches!(mismatch, Reservation::Mismatch(stored) if stored == fingerprint(1)));
}

#[tokio::test]
async fn one_of_many_equal_reservations_wins() {
    let file = File::wal();
    let stores = [store_in(&file).await, store_in(&file).await];
    let key = fresh_key();
    let barrier = Arc::new(Barrier::new(50));
    let mut tasks = JoinSet::new();
    for number in 0..50 {
        let (store, barrier) = (stores[number % 2].clone(), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            reserve(&store, &key).await
        });
    }
    let answers = tasks.join_all().await;
    let won = answers
        .iter()
        .filter(|answer| matches!(answer, Reservation::Acquired(_)))
        .count();
    let busy = answers
        .iter()
        .filter(|answer| matches!(answer, Reservation::InFlight { .. }))
        .count();
    assert_eq!((won, busy), (1, 49));
}

#[tokio::test]
async fn parallel_claims_on_one_file_never_meet_a_busy_database() {
    for mode in [SqliteJournalMode::Wal, SqliteJournalMode::Delete] {
        let file = File::new(mode);
        store_in(&file).await;
        let barrier = Arc::new(Barrier::new(20));
        let mut tasks = JoinSet::new();
        for _ in 0..20 {
            let store = LeaseStore::new(file.pool(1).await);
            let barrier = Arc::clone(&barrier);
            tasks.spawn(async move {
                barrier.wait().await;
                let claim = claim(&store, &fresh_key(), &terms()).await;
                store.renew(&claim, LEASE).await.unwrap();
                store
                    .complete(&claim, &response("done"), RETENTION)
                    .await
                    .unwrap();
            });
        }
        tasks.join_all().await;
        let rows = "SELECT count(*) FROM tower_idempotency_leases WHERE state = 1";
        assert_eq!(count(&file.pool(1).await, rows).await, 20);
    }
}

#[tokio::test]
async fn a_lapsed_claim_is_taken_over_only_where_the_terms_say_so() {
    let file = File::wal();
    let store = store_in(&file).await;
    let key = fresh_key();
    let first = claim(&store, &key, &lapsing()).await;
    until_lapsed(&store, &key).await;
    assert!(matches!(reserve(&store, &key).await, Reservation::Unknown));
    let second = claim(&store, &key, &terms().with_takeover(Takeover::RunAgain)).await;
    assert_eq!(second.attempt(), 2);
    assert!(second.fence() > first.fence());

    assert_kind(store.renew(&first, LEASE).await, StoreErrorKind::LostClaim);
    assert_kind(store.release(&first).await, StoreErrorKind::LostClaim);
    assert_kind(
        store.abandon(&first, RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert_kind(
        store.complete(&first, &response("late"), RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert!(matches!(
        reserve(&store, &key).await,
        Reservation::InFlight { .. }
    ));
    store
        .complete(&second, &response("second"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "second");
}

#[tokio::test]
async fn a_lapsed_claim_that_nobody_took_still_renews_and_completes() {
    let file = File::wal();
    let store = store_in(&file).await;
    let key = fresh_key();
    let claim = claim(&store, &key, &lapsing()).await;
    until_lapsed(&store, &key).await;
    store.renew(&claim, LEASE).await.unwrap();
    let record = store.inspect(&key).await.unwrap().unwrap();
    assert!(
        matches!(record.state, RecordState::InFlight { lease_left, .. } if lease_left <= LEASE)
    );
    assert!(
        record.expires_in > RETENTION,
        "the retention counts from the lease's end"
    );
    store.renew(&claim, INSTANT).await.unwrap();
    until_lapsed(&store, &key).await;
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test]
async fn a_settlement_may_be_repeated_and_not_changed() {
    let file = File::wal();
    let store = store_in(&file).await;
    let (done, left) = (fresh_key(), fresh_key());
    let claimed = claim(&store, &done, &terms()).await;
    store
        .complete(&claimed, &response("first"), RETENTION)
        .await
        .unwrap();
    store
        .complete(&claimed, &response("second"), RETENTION * 2)
        .await
        .unwrap();
    assert_kind(
        store.renew(&claimed, LEASE).await,
        StoreErrorKind::LostClaim,
    );
    assert_kind(store.release(&claimed).await, StoreErrorKind::LostClaim);
    assert_kind(
        store.abandon(&claimed, RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert_replays(&reserve(&store, &done).await, "first");
    assert!(store.inspect(&done).await.unwrap().unwrap().expires_in <= RETENTION);

    let claimed = claim(&store, &left, &terms()).await;
    store.abandon(&claimed, RETENTION).await.unwrap();
    store.abandon(&claimed, RETENTION * 2).await.unwrap();
    assert_kind(store.release(&claimed).await, StoreErrorKind::LostClaim);
    assert_kind(
        store.complete(&claimed, &response("late"), RETENTION).await,
        StoreErrorKind::LostClaim,
    );
    assert!(matches!(reserve(&store, &left).await, Reservation::Unknown));
    assert!(store.inspect(&left).await.unwrap().unwrap().expires_in <= RETENTION);
}

#[tokio::test]
async fn a_repeated_reservation_gets_its_own_claim_again() {
    let file = File::wal();
    let store = store_in(&file).await;
    let (key, terms) = (fresh_key(), lapsing());
    let first = claim(&store, &key, &terms).await;
    until_lapsed(&store, &key).await;
    let again = claim(&store, &key, &Terms::new(terms.nonce(), LEASE, RETENTION)).await;
    assert_eq!(
        (again.attempt(), again.fence()),
        (first.attempt(), first.fence())
    );
    assert!(matches!(
        reserve(&store, &key).await,
        Reservation::InFlight { .. }
    ));
}

#[tokio::test]
async fn a_released_key_is_free_and_its_fence_goes_on() {
    let file = File::wal();
    let store = store_in(&file).await;
    let key = fresh_key();
    let mut fence = 0;
    for _ in 0..20 {
        let claim = claim(&store, &key, &terms()).await;
        assert_eq!(claim.attempt(), 1);
        assert!(claim.fence() > fence);
        fence = claim.fence();
        store.release(&claim).await.unwrap();
        store.release(&claim).await.unwrap();
        assert!(store.inspect(&key).await.unwrap().is_none());
        store.purge_expired(10).await.unwrap();
    }
}

#[tokio::test]
async fn a_lost_record_is_written_by_its_owner() {
    let file = File::wal();
    let store = store_in(&file).await;
    let (done, left, free) = (fresh_key(), fresh_key(), fresh_key());
    let claims = [
        claim(&store, &done, &terms()).await,
        claim(&store, &left, &terms()).await,
        claim(&store, &free, &terms()).await,
    ];
    for key in [&done, &left, &free] {
        assert!(store.forget(key).await.unwrap());
        assert!(!store.forget(key).await.unwrap());
    }
    store
        .complete(&claims[0], &response("done"), RETENTION)
        .await
        .unwrap();
    store.abandon(&claims[1], RETENTION).await.unwrap();
    store.release(&claims[2]).await.unwrap();
    assert_replays(&reserve(&store, &done).await, "done");
    assert!(matches!(reserve(&store, &left).await, Reservation::Unknown));
    assert!(matches!(
        reserve(&store, &free).await,
        Reservation::Acquired(_)
    ));
}

#[tokio::test]
async fn forgetting_erases_what_was_saved_at_once() {
    let file = File::wal();
    let store = store_in(&file).await;
    let key = fresh_key();
    let claim = claim(&store, &key, &terms()).await;
    store
        .complete(&claim, &response("secret"), RETENTION)
        .await
        .unwrap();
    assert!(store.forget(&key).await.unwrap());
    let kept = "SELECT count(*) FROM tower_idempotency_leases WHERE response IS NOT NULL";
    assert_eq!(count(&file.pool(1).await, kept).await, 0);
}

#[tokio::test]
async fn purging_takes_expired_records_only_and_no_more_than_it_may() {
    let file = File::wal();
    let store = store_in(&file).await;
    let live = fresh_key();
    let _running = claim(&store, &live, &lapsing()).await;
    for _ in 0..5 {
        let key = fresh_key();
        let claim = claim(&store, &key, &terms()).await;
        store
            .complete(&claim, &response("done"), INSTANT)
            .await
            .unwrap();
        until(|| async { store.inspect(&key).await.unwrap().is_none() }).await;
        assert!(
            matches!(reserve(&store, &key).await, Reservation::Acquired(_)),
            "expired = absent"
        );
        store.forget(&key).await.unwrap();
    }
    let rows = "SELECT count(*) FROM tower_idempotency_leases";
    let pool = file.pool(1).await;
    let all_expired = "SELECT count(*) FROM tower_idempotency_leases
                       WHERE expires < (julianday('now') - 2440587.5) * 86400000000.0 - 1000";
    until(|| async { count(&pool, all_expired).await == 5 }).await;
    assert_eq!(store.purge_expired(2).await.unwrap(), 2);
    assert_eq!(count(&pool, rows).await, 4);
    assert_eq!(store.purge_expired(10).await.unwrap(), 3);
    assert_eq!(store.purge_expired(10).await.unwrap(), 0);
    assert_eq!(count(&pool, rows).await, 1);
    assert!(
        store.inspect(&live).await.unwrap().is_some(),
        "a lapsed claim hasn't expired"
    );
}

#[tokio::test]
async fn keys_that_differ_in_one_byte_are_two_keys() {
    let file = File::wal();
    let store = store_in(&file).await;
    let ends = [0x00, 0x20, b'a', b'A', 0xff];
    for end in ends {
        let mut bytes = [b'k'; 32];
        bytes[31] = end;
        claim(&store, &RecordKey::from_bytes(bytes), &terms()).await;
    }
    let rows = "SELECT count(DISTINCT record_key) FROM tower_idempotency_leases";
    assert_eq!(count(&file.pool(1).await, rows).await, 5);
}

#[tokio::test]
async fn nobody_here_takes_over_while_a_renewal_waits_for_the_writer() {
    let file = File::wal();
    let store = store_in(&file).await;
    let (key, writer) = (fresh_key(), file.pool(1).await);
    let claimed = claim(&store, &key, &lapsing()).await;
    until_lapsed(&store, &key).await;
    let blocker = writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let renewal = tokio::spawn({
        let (store, claimed) = (store.clone(), claimed.clone());
        async move { store.renew(&claimed, LEASE).await }
    });
    let again = terms().with_takeover(Takeover::RunAgain);
    until(|| async {
        // Not yet by `again`: until the renewal waits, a takeover would itself have to wait for the writer.
        matches!(reserve(&store, &key).await, Reservation::InFlight { .. })
    })
    .await;
    let answer = store.reserve(&key, &fingerprint(1), &again).await.unwrap();
    assert!(matches!(answer, Reservation::InFlight { .. }));
    assert!(!renewal.is_finished());
    blocker.rollback().await.unwrap();
    renewal.await.unwrap().unwrap();
    let record = store.inspect(&key).await.unwrap().unwrap();
    assert_eq!(record.attempt, 1);
}

#[tokio::test]
async fn a_lock_that_outlasts_the_busy_timeout_is_unavailable_and_claims_nothing() {
    let file = File::wal();
    let _migrated = store_in(&file).await;
    let store = LeaseStore::new(file.pool_with(1, Duration::ZERO).await);
    let (key, writer) = (fresh_key(), file.pool(1).await);
    let blocker = writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
    assert_kind(
        store.reserve(&key, &fingerprint(1), &terms()).await,
        StoreErrorKind::Unavailable,
    );
    blocker.rollback().await.unwrap();
    assert!(store.inspect(&key).await.unwrap().is_none());
    claim(&store, &key, &terms()).await;
}

/// Without WAL a commit waits for readers. The claim is the first statement that writes, so its commit is the one that counts.
#[tokio::test]
async fn a_claim_that_could_not_be_committed_is_not_acquired() {
    let file = File::new(SqliteJournalMode::Delete);
    let store = LeaseStore::new(file.pool_with(1, INSTANT).await);
    store.migrate().await.unwrap();
    let reader = file.pool(1).await;
    let mut reading = reader.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM tower_idempotency_leases")
        .execute(&mut *reading)
        .await
        .unwrap();
    let key = fresh_key();
    let refused = store.reserve(&key, &fingerprint(1), &terms()).await;
    assert_kind(refused, StoreErrorKind::Unavailable);
    reading.rollback().await.unwrap();
    claim(&store, &key, &terms()).await;
    let elsewhere = LeaseStore::new(reader);
    assert!(matches!(
        reserve(&elsewhere, &key).await,
        Reservation::InFlight { .. }
    ));
}

#[tokio::test]
async fn migrating_twice_or_by_the_shipped_file_changes_nothing() {
    let file = File::wal();
    let store = store_in(&file).await;
    let key = fresh_key();
    let claimed = claim(&store, &key, &terms()).await;
    store
        .complete(&claimed, &response("done"), RETENTION)
        .await
        .unwrap();
    store.migrate().await.unwrap();
    sqlx::raw_sql(include_str!("../src/store/sqlite/lease.sql"))
        .execute(&file.pool(1).await)
        .await
        .unwrap();
    store.migrate().await.unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test]
async fn processes_that_migrate_at_once_all_succeed() {
    let file = File::wal();
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = LeaseStore::new(file.pool(1).await);
        tasks.spawn(async move { store.migrate().await });
    }
    assert!(tasks.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_table_of_a_later_release_is_refused_by_name_and_version() {
    let file = File::wal();
    let store = store_in(&file).await;
    sqlx::query("UPDATE tower_idempotency_schema SET version = 2")
        .execute(&file.pool(1).await)
        .await
        .unwrap();
    for refused in [store.migrate().await, store.check().await] {
        let source = refused.unwrap_err().source().unwrap().to_string();
        assert!(
            source.contains("`leases`") && source.contains("version 2"),
            "{source}"
        );
    }
}

#[tokio::test]
async fn a_missing_table_says_what_to_do() {
    let file = File::wal();
    let store = LeaseStore::new(file.pool(1).await);
    store.ping().await.unwrap();
    let error = store.inspect(&fresh_key()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other);
    let source = error.source().unwrap().to_string();
    assert!(source.contains("migrate()"), "{source}");
    let at_start = store
        .check()
        .await
        .unwrap_err()
        .source()
        .unwrap()
        .to_string();
    assert!(at_start.contains("migrate()"), "{at_start}");
    store.migrate().await.unwrap();
    store.check().await.unwrap();
}

#[tokio::test]
async fn an_in_memory_database_works_on_one_lasting_connection() {
    let pool = sqlx::sqlite::SqlitePoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect("sqlite::memory:")
        .await
        .unwrap();
    let store = LeaseStore::new(pool);
    store.migrate().await.unwrap();
    let key = fresh_key();
    let claim = claim(&store, &key, &terms()).await;
    store
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test]
async fn a_closed_pool_is_unavailable() {
    let file = File::wal();
    let pool: SqlitePool = file.pool(1).await;
    let store = LeaseStore::new(pool.clone());
    pool.close().await;
    assert_kind(store.ping().await, StoreErrorKind::Unavailable);
}

/// As before there were steps.
#[tokio::test]
async fn a_table_without_steps_is_refused_at_start() {
    let file = File::wal();
    let pool = file.pool(1).await;
    let store = LeaseStore::new(pool.clone());
    store.migrate().await.unwrap();
    sqlx::query("ALTER TABLE tower_idempotency_leases DROP COLUMN steps")
        .execute(&pool)
        .await
        .unwrap();
    for refused in [store.migrate().await, store.check().await] {
        let source = refused.unwrap_err().source().unwrap().to_string();
        assert!(
            source.contains("tower_idempotency_leases")
                && source.contains("lacks the column `steps`"),
            "{source}"
        );
    }
}

/// SQLite would join two blobs to a text, whose encoding is the database's.
#[tokio::test]
async fn notes_are_bytes_whatever_the_databases_encoding() {
    for encoding in ["UTF-8", "UTF-16le", "UTF-16be"] {
        let file = File::new(sqlx::sqlite::SqliteJournalMode::Delete);
        let pool = file.pool(1).await;
        let pragma = sqlx::AssertSqlSafe(format!("PRAGMA encoding = '{encoding}'"));
        sqlx::raw_sql(pragma).execute(&pool).await.unwrap();
        let store = LeaseStore::new(pool.clone());
        store.migrate().await.unwrap();
        let set: String = sqlx::query_scalar("PRAGMA encoding")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(set, encoding);
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let all: Vec<u8> = (0..=255).collect();
        // Of even and odd lengths, which matters to two-byte encodings.
        let notes = [
            Note::new("a", all.clone()),
            Note::new("bc", all),
            Note::new("", "\0"),
            Note::new("d", ""),
        ];
        for note in &notes {
            store.note(&claimed, note).await.unwrap();
            store.note(&claimed, note).await.unwrap();
        }
        assert_eq!(store.notes(&claimed).await.unwrap(), notes, "{encoding}");
        let kind: String = sqlx::query_scalar("SELECT typeof(steps) FROM tower_idempotency_leases")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(kind, "text");
    }
}

/// Released, completed and forgotten rows stay until they are purged; what they noted doesn't.
#[tokio::test]
async fn notes_are_erased_with_the_end_of_their_run() {
    let file = File::wal();
    let pool = file.pool(1).await;
    let store = LeaseStore::new(pool.clone());
    store.migrate().await.unwrap();
    for end in ["complete", "release", "forget"] {
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        store
            .note(&claimed, &Note::new("step", "secret"))
            .await
            .unwrap();
        match end {
            "complete" => store
                .complete(&claimed, &response("done"), RETENTION)
                .await
                .unwrap(),
            "release" => store.release(&claimed).await.unwrap(),
            _ => assert!(store.forget(claimed.key()).await.unwrap()),
        }
    }
    let left = "SELECT count(*) FROM tower_idempotency_leases WHERE steps IS NOT NULL";
    assert_eq!(count(&pool, left).await, 0);
}

const SHIPPED: &str = include_str!("../src/store/sqlite/lease.sql");

/// The store on a table of a team's own: as it is shipped, but for this.
async fn store_on(from: &str, to: &str) -> (LeaseStore, File) {
    assert!(SHIPPED.contains(from), "{from}");
    let (file, sql) = (File::wal(), SHIPPED.replace(from, to));
    let pool = file.pool(1).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&pool)
        .await
        .unwrap();
    (LeaseStore::new(pool), file)
}

const KEY: &str = "CREATE UNIQUE INDEX IF NOT EXISTS tower_idempotency_leases_key ON tower_idempotency_leases (record_key);";

#[tokio::test]
async fn a_table_that_does_not_fit_is_refused_at_start_with_all_that_is_wrong() {
    let on_expires = "INDEX IF NOT EXISTS tower_idempotency_leases_expires ON tower_idempotency_leases (expires);";
    for (from, to, told) in [
        (KEY, "", "lacks a unique index on `record_key` alone"),
        (
            "(record_key);",
            "(record_key) WHERE state = 1;",
            "lacks a unique index on `record_key` alone",
        ),
        (
            "(record_key);",
            "(record_key, fence);",
            "lacks a unique index on `record_key` alone, has another unique index",
        ),
        (
            "(record_key);",
            "(record_key, abs(fence));",
            "lacks a unique index on `record_key` alone, has another unique index",
        ),
        (
            "UNIQUE INDEX",
            "INDEX",
            "lacks a unique index on `record_key` alone",
        ),
        (
            "(expires);",
            "(fence, expires);",
            "lacks an index on `expires`",
        ),
        (
            on_expires,
            "UNIQUE INDEX e ON tower_idempotency_leases (expires);",
            "has another unique index",
        ),
        (
            "    response        BLOB,",
            "    response        BLOB NOT NULL,",
            "has `response` as NOT NULL",
        ),
        (
            "    fence           INTEGER",
            "    fence           TEXT   ",
            "has `fence` as TEXT instead of INTEGER",
        ),
        (
            "    response        BLOB,",
            "    response        BLOB, tenant TEXT NOT NULL,",
            "has `tenant` as NOT NULL without a default",
        ),
        (
            "digits\n) STRICT;",
            "digits\n, PRIMARY KEY (record_key)) STRICT, WITHOUT ROWID;",
            "is no plain table with a rowid",
        ),
    ] {
        let (store, _file) = store_on(from, to).await;
        for refused in [store.migrate().await, store.check().await] {
            let source = refused.unwrap_err().source().unwrap().to_string();
            let told = format!("the table `tower_idempotency_leases` {told}:");
            assert!(source.starts_with(&told), "{source}");
        }
    }
}

#[tokio::test]
async fn a_table_of_a_teams_own_that_fits_is_taken() {
    for (from, to) in [
        (
            "BLOB    NOT NULL CHECK (length(record_key) = 32)",
            "BLOB NOT NULL PRIMARY KEY",
        ),
        ("    nonce ", "    NONCE "),
        ("STRICT;\n\n-- A rowid", ";\n\n-- A rowid"),
        (
            "    response        BLOB,",
            "    response blob, id INTEGER PRIMARY KEY NOT NULL, tenant TEXT NOT NULL DEFAULT 'all',",
        ),
    ] {
        let (store, _file) = store_on(from, to).await;
        store.migrate().await.unwrap();
        store.check().await.unwrap();
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let completed = store.complete(&claimed, &response("done"), RETENTION).await;
        completed.unwrap();
        assert_replays(&reserve(&store, claimed.key()).await, "done");
    }
}

#[tokio::test]
async fn a_trigger_that_keeps_rows_from_the_table_is_an_error() {
    let file = File::wal();
    let store = store_in(&file).await;
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    sqlx::raw_sql(
        "DELETE FROM tower_idempotency_leases;
         CREATE TRIGGER skip BEFORE INSERT ON tower_idempotency_leases BEGIN SELECT RAISE(IGNORE); END",
    )
    .execute(&file.pool(1).await)
    .await
    .unwrap();
    let reserved = store.reserve(&fresh_key(), &fingerprint(1), &terms()).await;
    assert_kind(reserved, StoreErrorKind::Other);
    let completed = store.complete(&claimed, &response("done"), RETENTION).await;
    assert_kind(completed, StoreErrorKind::Other);
}

/// By a script that was half done, say: there is a table, and no version yet.
#[tokio::test]
async fn a_table_without_a_version_is_looked_at_as_well() {
    let version =
        "INSERT OR IGNORE INTO tower_idempotency_schema (name, version) VALUES ('leases', 1);";
    let (store, file) = store_on(
        version,
        "ALTER TABLE tower_idempotency_leases DROP COLUMN steps;",
    )
    .await;
    let source = store
        .migrate()
        .await
        .unwrap_err()
        .source()
        .unwrap()
        .to_string();
    assert!(source.contains("lacks the column `steps`"), "{source}");
    let versions: i64 = sqlx::query_scalar("SELECT count(*) FROM tower_idempotency_schema")
        .fetch_one(&file.pool(1).await)
        .await
        .unwrap();
    assert_eq!(versions, 0);
    let (store, _file) = store_on(version, "").await;
    store.migrate().await.unwrap();
}

#[tokio::test]
async fn what_was_freed_stays_free_when_the_clock_is_set_back() {
    let file = File::wal();
    let (pool, store) = (file.pool(1).await, store_in(&file).await);
    let execute = async |sql| {
        sqlx::query(sql).execute(&pool).await.unwrap();
    };
    sql_leases::what_was_freed_stays_free_when_the_clock_is_set_back(&store, execute).await;
}

#[tokio::test]
async fn a_record_written_over_an_expired_one_has_its_fence_and_nothing_else_of_it() {
    let file = File::wal();
    let (pool, store) = (file.pool(1).await, store_in(&file).await);
    let execute = async |sql| {
        sqlx::query(sql).execute(&pool).await.unwrap();
    };
    let count = async |sql| count(&pool, sql).await;
    sql_leases::a_record_written_over_an_expired_one_has_its_fence_and_nothing_else_of_it(
        &store, execute, count,
    )
    .await;
}
