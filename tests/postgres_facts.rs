//! What the stores rest on: how sqlx 0.9 and Postgres behave. One of these failing means that a store must be looked at again.
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod postgres_support;
mod servers;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use postgres_support::*;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgPool, Row,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tower_idempotency::{
    RecordKey, StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::{Nonce, Reservation, Store, Takeover, Terms},
};

/// Drops the future after this many polls, each of them when there was something to go on with.
async fn drop_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polled = 0;
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        polled += 1;
        if polled < polls {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    })
    .await
}

/// Now and then an answer is there before it is asked for, so that a call needs fewer polls than usual: several rounds.
const POLLS: [u32; 20] = [1, 2, 3, 4, 6, 1, 2, 3, 4, 6, 1, 2, 3, 4, 6, 1, 2, 3, 4, 12];

/// Whether the pool's one connection came out of it in a transaction.
async fn is_in_transaction(pool: &PgPool) -> bool {
    let sql = sqlx::raw_sql("SELECT now() <> statement_timestamp()");
    sql.fetch_one(pool).await.unwrap().get(0)
}

async fn waits(outside: &PgPool) -> bool {
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    count(outside, sql).await > 0
}

/// M1
#[tokio::test]
async fn a_commit_after_a_swallowed_error_says_ok_and_persists_nothing() {
    let Some(database) = Database::new().await else {
        return;
    };
    let pool = database.pool(1).await;
    let charge = "INSERT INTO charges (amount) VALUES (10)";
    let mut transaction = pool.begin().await.unwrap();
    transaction.execute(charge).await.unwrap();
    let error = transaction.execute(charge).await.unwrap_err();
    assert_eq!(state(&error), "23505");
    let error = transaction.execute("SELECT 1").await.unwrap_err();
    assert_eq!(state(&error), "25P02");
    transaction.commit().await.unwrap();
    assert_eq!(count(&pool, CHARGES).await, 0);
}

/// M3: it is mended in a later sqlx than 0.9.0, and this test tells when.
#[tokio::test]
async fn a_begin_that_is_dropped_leaves_a_transaction_in_the_pool() {
    let Some(database) = Database::new().await else {
        return;
    };
    let pool = database.pool(1).await;
    let mut poisoned = 0;
    for polls in POLLS {
        if drop_after(polls, pool.begin()).await.is_none() {
            poisoned += i64::from(is_in_transaction(&pool).await);
            pool.execute("ROLLBACK").await.unwrap();
        }
    }
    assert!(poisoned > 0);
}

/// M3, and what the stores do about it.
#[tokio::test]
async fn a_reservation_that_is_dropped_leaves_no_transaction_and_no_key_behind() {
    let Some(database) = Database::new().await else {
        return;
    };
    for level in ["read committed", "serializable"] {
        let setting = ("default_transaction_isolation", level);
        let pool = database.pool_with(1, setting).await;
        let store = TransactionStore::new(pool.clone());
        let mut dropped = 0;
        for polls in POLLS {
            let key = fresh_key();
            let (of, terms) = (fingerprint(1), terms());
            let reservation = store.reserve(&key, &of, &terms);
            dropped += i64::from(drop_after(polls, reservation).await.is_none());
            let claimed = loop {
                match reserve(&store, &key).await {
                    Reservation::Acquired(claim) => break claim,
                    Reservation::InFlight { .. } => tokio::task::yield_now().await,
                    other => panic!("{other:?}"),
                }
            };
            store.release(&claimed).await.unwrap();
            assert!(!is_in_transaction(&pool).await);
        }
        assert!(dropped > 0);
    }
}

#[tokio::test]
async fn a_lease_call_that_is_dropped_leaves_a_pool_in_order() {
    let Some(database) = Database::new().await else {
        return;
    };
    for cached in [100, 0] {
        let options = database.options().statement_cache_capacity(cached);
        let pool = pool(options, 1).await;
        let store = LeaseStore::new(pool.clone());
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let saved = response("done");
        let mut dropped = 0;
        for polls in POLLS {
            let complete = store.complete(&claimed, &saved, RETENTION);
            dropped += i64::from(drop_after(polls, complete).await.is_none());
            assert!(!is_in_transaction(&pool).await);
        }
        assert!(dropped > 0);
        store.complete(&claimed, &saved, RETENTION).await.unwrap();
        assert_replays(&reserve(&store, claimed.key()).await, "done");
    }
}

/// M4
#[tokio::test]
async fn a_commit_that_is_dropped_after_its_first_poll_may_have_happened() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (pool, outside) = (database.pool(1).await, database.pool(1).await);
    let mut transaction = pool.begin().await.unwrap();
    let charge = "INSERT INTO charges (amount) VALUES (10)";
    transaction.execute(charge).await.unwrap();
    assert!(drop_after(1, transaction.commit()).await.is_none());
    until(|| async { count(&outside, CHARGES).await == 1 }).await;
}

/// M4, and what the store makes of it.
#[tokio::test]
async fn a_completion_that_is_dropped_is_told_truly_by_the_next_one() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, outside) = (database.transactions(1).await, database.pool(1).await);
    let (mut committed, mut dropped) = (0, 0);
    for (polls, amount) in POLLS.into_iter().zip(1..) {
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        charge(&mut take(&claimed), amount).await;
        let saved = response("done");
        let completed = drop_after(polls, store.complete(&claimed, &saved, RETENTION)).await;
        dropped += i64::from(completed.is_none());
        // It reads under the lock, which the dropped connection may have for a moment still: that wait is bounded.
        match store.complete(&claimed, &saved, RETENTION).await {
            Ok(()) => {
                committed += 1;
                assert_replays(&reserve(&store, claimed.key()).await, "done");
            }
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::RolledBack);
                assert!(store.inspect(claimed.key()).await.unwrap().is_none());
            }
        }
        assert_eq!(count(&outside, CHARGES).await, committed);
    }
    assert!(dropped > 0 && committed > 0, "{dropped}, {committed}");
}

/// M13: sqlx's own rollback comes when the connection is used again or is back in the pool.
#[tokio::test]
async fn a_released_key_is_free_for_others_when_the_call_returns() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (store, other) = (
        database.transactions(1).await,
        database.transactions(1).await,
    );
    let key = fresh_key();
    for _ in 0..20 {
        for (here, there) in [(&store, &other), (&other, &store)] {
            let claimed = claim(here, &key, &terms()).await;
            let busy = reserve(there, &key).await;
            assert!(matches!(busy, Reservation::InFlight { .. }));
            here.release(&claimed).await.unwrap();
        }
    }
}

/// M21
#[tokio::test]
async fn what_is_read_beside_taking_a_lock_is_older_than_the_lock() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (pool, outside) = (database.pool(2).await, database.pool(1).await);
    for (sql, seen) in [
        (
            "SELECT (SELECT count(*) FROM charges) FROM pg_advisory_xact_lock(1)",
            0,
        ),
        (
            "SELECT pg_advisory_xact_lock(1); SELECT count(*) FROM charges",
            1,
        ),
    ] {
        outside.execute("DELETE FROM charges").await.unwrap();
        let mut holder = pool.begin().await.unwrap();
        holder
            .execute("SELECT pg_advisory_xact_lock(1)")
            .await
            .unwrap();
        holder
            .execute("INSERT INTO charges (amount) VALUES (10)")
            .await
            .unwrap();
        let waiting = tokio::spawn({
            let pool = pool.clone();
            async move {
                let text = format!("BEGIN; {sql}; COMMIT");
                let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&pool).await;
                let rows = rows.unwrap();
                rows.last().unwrap().get::<i64, _>(0)
            }
        });
        until(|| waits(&outside)).await;
        holder.commit().await.unwrap();
        assert_eq!(waiting.await.unwrap(), seen, "{sql}");
    }
}

/// M5 and M22: the claim waits for one that is not committed yet, and then neither makes a row nor sees one.
#[tokio::test]
async fn a_claim_that_meets_one_in_the_making_looks_again() {
    let Some(database) = Database::new().await else {
        return;
    };
    let outside = database.pool(2).await;
    for level in ["read committed", "repeatable read", "serializable"] {
        for commits in [true, false] {
            let setting = ("default_transaction_isolation", level);
            let store = LeaseStore::new(database.pool_with(1, setting).await);
            let key = fresh_key();
            let mut making = outside.begin().await.unwrap();
            sqlx::query(
                "INSERT INTO tower_idempotency_leases (record_key, fence, lease_end, expires, fingerprint_tag, attempt,
                     state, fingerprint, nonce)
                 VALUES ($1, 1, 9e15, 9e15, 257, 1, 0, decode(repeat('01', 32), 'hex'), decode(repeat('02', 16), 'hex'))",
            )
            .bind(key.as_bytes())
            .execute(&mut *making)
            .await
            .unwrap();
            let reserving = tokio::spawn(async move { reserve(&store, &key).await });
            until(|| waits(&outside)).await;
            if commits {
                making.commit().await.unwrap();
            } else {
                making.rollback().await.unwrap();
            }
            match reserving.await.unwrap() {
                Reservation::InFlight { .. } => assert!(commits, "{level}"),
                Reservation::Acquired(_) => assert!(!commits, "{level}"),
                other => panic!("{level}: {other:?}"),
            }
        }
    }
}

/// M23
#[tokio::test]
async fn an_upsert_that_updates_nothing_locks_the_row_and_a_replay_does_not() {
    let Some(server) = servers::Postgres::start_with(&["autovacuum = off"]) else {
        return;
    };
    let database = Database::on(&server).await;
    let (pool, outside) = (database.pool(1).await, database.pool(1).await);
    let (lease, transaction) = (
        LeaseStore::new(pool.clone()),
        TransactionStore::new(pool.clone()),
    );
    let stores: [(&dyn Store, &str); 2] = [
        (&lease, "tower_idempotency_leases"),
        (&transaction, "tower_idempotency_transactions"),
    ];
    let wal = "SELECT (pg_current_wal_lsn() - '0/0')::bigint";
    for (store, table) in stores {
        let (done, busy) = (fresh_key(), fresh_key());
        let claimed = claim(store, &done, &terms()).await;
        store
            .complete(&claimed, &response("done"), RETENTION)
            .await
            .unwrap();
        claim(&lease, &busy, &terms()).await;
        // Who locked a row last is written into it.
        let lockers = format!("SELECT xmax::text::bigint FROM {table} ORDER BY record_key");
        let lockers = async || -> Vec<i64> {
            let query = sqlx::query_scalar(AssertSqlSafe(lockers.clone()));
            query.fetch_all(&outside).await.unwrap()
        };
        let unlocked = lockers().await;
        // Hints and full pages are written once, by the first who reads.
        for round in 0..2 {
            let before = count(&outside, wal).await;
            for _ in 0..20 {
                assert_replays(&reserve(store, &done).await, "done");
                let mismatch = store.reserve(&done, &fingerprint(2), &terms()).await;
                assert!(matches!(mismatch.unwrap(), Reservation::Mismatch(_)));
                assert!(store.inspect(&done).await.unwrap().is_some());
                let answer = reserve(&lease, &busy).await;
                assert!(matches!(answer, Reservation::InFlight { .. }));
            }
            let written = count(&outside, wal).await - before;
            if round > 0 {
                assert_eq!(written, 0, "bytes of WAL, {table}");
            }
        }
        assert_eq!(lockers().await, unlocked, "{table}");

        let upsert = format!(
            "INSERT INTO {table} SELECT * FROM {table} WHERE record_key = $1
             ON CONFLICT (record_key) DO UPDATE SET expires = 0 WHERE false"
        );
        let query = sqlx::query(AssertSqlSafe(upsert)).bind(done.as_bytes());
        query.execute(&outside).await.unwrap();
        assert_ne!(lockers().await, unlocked, "{table}");
    }
}

/// M29: the deletion by a list of keys waits for the row, and deletes what was claimed anew meanwhile.
#[tokio::test]
async fn a_purge_does_not_wait_for_a_row_that_is_being_claimed_and_keeps_it() {
    let Some(database) = Database::new().await else {
        return;
    };
    let outside = database.pool(3).await;
    let renew = "UPDATE tower_idempotency_leases SET expires = 9e15";
    let rows = "SELECT count(*) FROM tower_idempotency_leases";
    let store = database.leases(1).await;
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    store.release(&claimed).await.unwrap();

    let mut claiming = outside.begin().await.unwrap();
    claiming.execute(renew).await.unwrap();
    assert_eq!(store.purge_expired(10).await.unwrap(), 0);
    claiming.commit().await.unwrap();
    assert_eq!(store.purge_expired(10).await.unwrap(), 0);
    assert_eq!(count(&outside, rows).await, 1);

    let expire = "UPDATE tower_idempotency_leases SET lease_end = 1, expires = 1";
    outside.execute(expire).await.unwrap();
    let mut claiming = outside.begin().await.unwrap();
    claiming.execute(renew).await.unwrap();
    let naive = tokio::spawn({
        let outside = outside.clone();
        async move {
            let sql = "DELETE FROM tower_idempotency_leases WHERE record_key IN
                 (SELECT record_key FROM tower_idempotency_leases WHERE expires < 1000 LIMIT 10)";
            outside.execute(sql).await.unwrap().rows_affected()
        }
    });
    until(|| waits(&outside)).await;
    claiming.commit().await.unwrap();
    assert_eq!(naive.await.unwrap(), 1, "a live row");
}

/// M30: a COMMIT that waits for a standby is not seen yet, and its locks are held. Only under the lock absence proves anything.
#[tokio::test]
async fn an_absent_record_proves_nothing_while_the_lock_of_its_key_is_held() {
    let Some(server) = servers::Postgres::start_with(&[
        "wal_level = replica",
        "max_wal_senders = 2",
        "synchronous_standby_names = 'nobody'",
        "synchronous_commit = local",
    ]) else {
        return;
    };
    let database = Database::on(&server).await;
    let outside = database.pool(1).await;
    let setting = ("synchronous_commit", "on");
    let store = TransactionStore::new(database.pool_with(1, setting).await);
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    charge(&mut take(&claimed), 10).await;
    let committing = tokio::spawn({
        let (store, claimed) = (store.clone(), claimed.clone());
        async move { store.complete(&claimed, &response("done"), RETENTION).await }
    });
    let in_commit = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until(|| async { count(&outside, in_commit).await == 1 }).await;
    // The client goes. The server doesn't notice.
    committing.abort();
    assert!(committing.await.unwrap_err().is_cancelled());
    assert!(store.inspect(claimed.key()).await.unwrap().is_none());
    assert_eq!(count(&outside, CHARGES).await, 0);
    let complete = async || store.complete(&claimed, &response("done"), RETENTION).await;
    assert_kind(complete().await, StoreErrorKind::OutcomeUnknown);
    assert!(matches!(
        reserve(&database.transactions(1).await, claimed.key()).await,
        Reservation::InFlight { .. }
    ));
    for sql in [
        "ALTER SYSTEM SET synchronous_standby_names = ''",
        "SELECT pg_reload_conf()",
    ] {
        outside.execute(sql).await.unwrap();
    }
    until(|| async { count(&outside, CHARGES).await == 1 }).await;
    complete().await.unwrap();
    assert_replays(&reserve(&store, claimed.key()).await, "done");
}

/// On how the stores tell a pool that leads through a pooler.
#[tokio::test]
async fn a_statement_cache_that_is_off_shows_in_the_url_and_leaves_statements_with_names() {
    let cached = |options: PgConnectOptions| {
        let url = options.to_url_lossy();
        let mut pairs = url.query_pairs();
        let capacity = pairs.find(|(name, _)| name == "statement-cache-capacity");
        capacity.unwrap().1.into_owned()
    };
    let options = PgConnectOptions::new_without_pgpass();
    assert_eq!(cached(options.clone()), "100");
    assert_eq!(cached(options.statement_cache_capacity(0)), "0");

    let Some(database) = Database::new().await else {
        return;
    };
    let named = "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''";
    let options = database.options().statement_cache_capacity(0);
    let mut connection = options.connect().await.unwrap();
    for persistent in [false, true] {
        for _ in 0..3 {
            let query = sqlx::query("SELECT $1::bigint").bind(1_i64);
            let query = query.persistent(persistent);
            query.execute(&mut connection).await.unwrap();
        }
        let row = sqlx::raw_sql(named).fetch_one(&mut connection).await;
        let names: i64 = row.unwrap().get(0);
        assert_eq!(names, if persistent { 3 } else { 0 });
    }
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_store_without_statement_cache_leaves_no_statements_with_names() {
    let Some(database) = Database::new().await else {
        return;
    };
    let options = database.options().statement_cache_capacity(0);
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await
        .unwrap();
    let lease = LeaseStore::new(pool.clone());
    let transaction = TransactionStore::new(pool.clone());
    let stores: [&dyn Store; 2] = [&lease, &transaction];
    for store in stores {
        use_all(store, &fresh_key()).await;
    }
    let named = "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''";
    let row = sqlx::raw_sql(named).fetch_one(&pool).await.unwrap();
    assert_eq!(row.get::<i64, _>(0), 0);
}

/// Every call of a store.
async fn use_all(store: &dyn Store, key: &RecordKey) {
    let terms = Terms::new(Nonce::random(), INSTANT, RETENTION);
    let lapsing = terms
        .with_run_limit(LEASE)
        .with_takeover(Takeover::RunAgain);
    for ends in 0..4 {
        let claim = claim(store, key, &lapsing).await;
        store.renew(&claim, LEASE).await.unwrap();
        match ends {
            0 => store.release(&claim).await.unwrap(),
            1 => store.abandon(&claim, INSTANT).await.unwrap(),
            2 => store
                .complete(&claim, &response("done"), INSTANT)
                .await
                .unwrap(),
            _ => store
                .complete(&claim, &response("done"), RETENTION)
                .await
                .unwrap(),
        }
        if ends < 3 {
            until(|| async { store.inspect(key).await.unwrap().is_none() }).await;
        }
    }
    assert_replays(&reserve(store, key).await, "done");
    assert!(store.forget(key).await.unwrap());
    store.purge_expired(10).await.unwrap();
    store.ping().await.unwrap();
}
