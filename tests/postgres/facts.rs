//! What the stores rest on: how sqlx 0.9 and Postgres behave. One of these failing means that a store must be looked at again.

use std::cell::Cell;

use sqlx::{AssertSqlSafe, Executor, PgConnection, PgPool, Row};
use tower_idempotency::{
    RecordKey, StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::{Reservation, Store},
};

use super::{
    database,
    dropped::{drop_after, is_in_transaction, polls_until},
};
use crate::{postgres_support::*, servers};

pub(super) async fn waits(outside: &PgPool) -> bool {
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    count(outside, sql).await > 0
}

#[tokio::test]
async fn a_commit_after_a_swallowed_error_says_ok_and_persists_nothing() {
    let database = database!();
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

/// The driver's own rollback comes when the connection is used again or is back in the pool.
#[tokio::test]
async fn a_released_key_is_free_for_others_when_the_call_returns() {
    let database = database!();
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

#[tokio::test]
async fn what_is_read_beside_taking_a_lock_is_older_than_the_lock() {
    let database = database!();
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

/// A claim of another's, as a row.
pub(super) async fn insert_claim(connection: &mut PgConnection, key: &RecordKey) {
    let insert = sqlx::query(
        "INSERT INTO tower_idempotency_leases (record_key, fence, lease_end, expires, fingerprint_tag, attempt, state,
             fingerprint, nonce)
         VALUES ($1, 1, 9e15, 9e15, 257, 1, 0, decode(repeat('01', 32), 'hex'), decode(repeat('02', 16), 'hex'))",
    );
    let inserted = insert.bind(key.as_bytes()).execute(connection).await;
    inserted.unwrap();
}

/// The claim waits for one that is not committed yet, and then neither makes a row nor sees one.
#[tokio::test]
async fn a_claim_that_meets_one_in_the_making_looks_again() {
    let database = database!();
    let outside = database.pool(2).await;
    for level in ["read committed", "repeatable read", "serializable"] {
        for commits in [true, false] {
            let setting = ("default_transaction_isolation", level);
            let store = LeaseStore::new(database.pool_with(1, setting).await);
            let key = fresh_key();
            let mut making = outside.begin().await.unwrap();
            insert_claim(&mut making, &key).await;
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

/// How a statement is sent.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Its first use on a connection, and the later ones.
    Prepared,
    Unnamed,
    Text,
}

const FORMS: [Form; 3] = [Form::Prepared, Form::Unnamed, Form::Text];

/// Whether a statement is in a transaction of its own, as it tells itself: a bound one began it when it was bound, which is when its
/// portal was made, and a text when it came.
const IS_OWN: &str = "SELECT transaction_timestamp() = coalesce(
    (SELECT creation_time FROM pg_cursors WHERE name = ''), statement_timestamp())";

async fn ask(pool: &PgPool, sql: &'static str, form: Form) -> bool {
    let row = match form {
        Form::Prepared => sqlx::query(sql).fetch_one(pool).await,
        Form::Unnamed => sqlx::query(sql).persistent(false).fetch_one(pool).await,
        Form::Text => sqlx::raw_sql(sql).fetch_one(pool).await,
    };
    row.unwrap().get(0)
}

#[tokio::test]
async fn a_statement_tells_whether_its_transaction_is_its_own() {
    let database = database!();
    for form in FORMS {
        let pool = database.pool(1).await;
        for _ in 0..20 {
            assert!(ask(&pool, IS_OWN, form).await, "{form:?}");
        }
        // At once, and after some statements.
        for before in ["", "; SELECT 1", "; SAVEPOINT a; SELECT 1; SAVEPOINT b"] {
            let begin = AssertSqlSafe(format!("BEGIN{before}"));
            sqlx::raw_sql(begin).execute(&pool).await.unwrap();
            for _ in 0..3 {
                assert!(!ask(&pool, IS_OWN, form).await, "{form:?}, BEGIN{before}");
            }
            pool.execute("ROLLBACK").await.unwrap();
        }
        assert!(ask(&pool, IS_OWN, form).await, "{form:?}");
    }
}

/// On why the times of statement and transaction alone don't tell: a bound statement has one more when it is executed.
#[tokio::test]
async fn a_prepared_statement_is_later_than_its_own_transaction() {
    let database = database!();
    let pool = database.pool(1).await;
    let same = "SELECT transaction_timestamp() = statement_timestamp()";
    let mut differing = 0;
    for _ in 0..100 {
        differing += i64::from(!ask(&pool, same, Form::Prepared).await);
        assert!(ask(&pool, same, Form::Text).await);
    }
    assert!(differing > 0);
}

/// Right behind a `BEGIN` that was sent and not waited for.
#[tokio::test]
async fn a_statement_tells_of_the_transaction_of_a_begin_that_was_dropped() {
    let database = database!();
    for form in FORMS {
        let strange = Cell::new(0);
        for polls in polls_until(&strange) {
            let pool = database.pool(1).await;
            if drop_after(polls, pool.begin()).await.is_some() {
                continue;
            }
            let is_own = ask(&pool, IS_OWN, form).await;
            assert_eq!(is_own, !is_in_transaction(&pool).await, "{form:?}, {polls}");
            strange.update(|count| count + i64::from(!is_own));
        }
        assert!(strange.get() > 0, "{form:?}");
    }
}

#[tokio::test]
async fn a_text_through_a_pooler_tells_whether_its_transaction_is_its_own() {
    let Some(server) = servers::postgres() else {
        return;
    };
    let Some(bouncer) = servers::PgBouncer::start(server, 2) else {
        return;
    };
    let database = Database::on(server).await;
    let options: sqlx::postgres::PgConnectOptions = bouncer.through(&database.0).parse().unwrap();
    let pool = pool(options.statement_cache_capacity(0), 1).await;
    for _ in 0..20 {
        assert!(ask(&pool, IS_OWN, Form::Text).await);
        pool.execute("BEGIN").await.unwrap();
        assert!(!ask(&pool, IS_OWN, Form::Text).await);
        pool.execute("ROLLBACK").await.unwrap();
    }
}

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

/// A COMMIT that waits for a standby is not seen yet, and its locks are held. Only under the lock absence proves anything.
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
