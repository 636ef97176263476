//! Errors of the database, told apart by their SQLSTATE: none is taken for a record.

use std::error::Error as _;

use tower_idempotency::{
    StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::Store,
};

use super::database;
use crate::postgres_support::*;

#[tokio::test]
async fn a_closed_pool_is_unavailable() {
    let database = database!();
    let pool = database.pool(1).await;
    let store = LeaseStore::new(pool.clone());
    store.ping().await.unwrap();
    pool.close().await;
    assert_kind(store.ping().await, StoreErrorKind::Unavailable);
}

#[tokio::test]
async fn a_lease_store_on_a_database_that_only_reads_refuses_and_replays() {
    let database = database!();
    let setting = ("default_transaction_read_only", "on");
    let store = LeaseStore::new(database.pool_with(1, setting).await);
    let key = fresh_key();
    assert_kind(
        store.reserve(&key, &fingerprint(1), &terms()).await,
        StoreErrorKind::Other,
    );
    assert!(store.inspect(&key).await.unwrap().is_none());
    let writable = database.leases(1).await;
    let claim = claim(&writable, &key, &terms()).await;
    writable
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test]
async fn a_database_that_only_reads_is_refused_before_the_handler_runs() {
    let database = database!();
    let writable = database.transactions(1).await;
    let (done, new) = (fresh_key(), fresh_key());
    let claim = claim(&writable, &done, &terms()).await;
    writable
        .complete(&claim, &response("done"), RETENTION)
        .await
        .unwrap();
    let setting = ("default_transaction_read_only", "on");
    let store = TransactionStore::new(database.pool_with(1, setting).await);
    assert_kind(
        store.reserve(&new, &fingerprint(1), &terms()).await,
        StoreErrorKind::Other,
    );
    assert_replays(&reserve(&store, &done).await, "done");
}

#[tokio::test]
async fn a_missing_table_says_what_to_do_and_leaves_nothing_behind() {
    let database = database!();
    let pool = database.pool(1).await;
    sqlx::query("DROP TABLE tower_idempotency_transactions")
        .execute(&pool)
        .await
        .unwrap();
    let store = TransactionStore::new(pool.clone());
    let key = fresh_key();
    for _ in 0..2 {
        let error = store
            .reserve(&key, &fingerprint(1), &terms())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other);
        assert!(error.source().unwrap().to_string().contains("migrate()"));
    }
    until(|| async { count(&pool, LOCKS).await == 0 }).await;
    store.migrate().await.unwrap();
    claim(&store, &key, &terms()).await;
}

/// Raised by the table itself, in a statement that claims a key.
#[tokio::test]
async fn errors_are_told_apart_by_their_sqlstate_and_none_is_a_record() {
    let database = database!();
    let (store, pool) = (database.leases(1).await, database.pool(1).await);
    sqlx::raw_sql(
        "CREATE TABLE trouble (state text);
         INSERT INTO trouble VALUES ('00000');
         CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'trouble' USING ERRCODE = (SELECT state FROM trouble); END $$;
         CREATE TRIGGER raise BEFORE INSERT ON tower_idempotency_leases FOR EACH ROW EXECUTE FUNCTION raise();",
    )
    .execute(&pool)
    .await
    .unwrap();
    for (state, kind) in [
        ("53100", StoreErrorKind::Full),
        ("53200", StoreErrorKind::Unavailable),
        ("53300", StoreErrorKind::Unavailable),
        ("57014", StoreErrorKind::Unavailable),
        ("57P01", StoreErrorKind::Unavailable),
        ("57P03", StoreErrorKind::Unavailable),
        ("08006", StoreErrorKind::Unavailable),
        ("25P03", StoreErrorKind::Unavailable),
        ("25P04", StoreErrorKind::Unavailable),
        ("25006", StoreErrorKind::Other),
        // After the last attempt.
        ("40001", StoreErrorKind::Other),
        ("40P01", StoreErrorKind::Other),
        ("23505", StoreErrorKind::Other),
        ("42501", StoreErrorKind::Other),
        ("42703", StoreErrorKind::Other),
        ("XX000", StoreErrorKind::Other),
        ("P0001", StoreErrorKind::Other),
    ] {
        let set = sqlx::query("UPDATE trouble SET state = $1").bind(state);
        set.execute(&pool).await.unwrap();
        let error = store
            .reserve(&fresh_key(), &fingerprint(1), &terms())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{state}");
        let message = error.source().unwrap().to_string();
        assert_eq!(message.contains("migrate()"), state == "42703", "{message}");
        assert_eq!(message.contains("privilege"), state == "42501", "{message}");
    }
    let rows = "SELECT count(*) FROM tower_idempotency_leases";
    assert_eq!(count(&pool, rows).await, 0);
}

/// In the statement or at its commit; by a pool with prepared statements, and by one without, where a completion has a transaction.
#[tokio::test]
async fn what_lost_against_another_is_tried_again() {
    let database = database!();
    let outside = database.pool(1).await;
    sqlx::raw_sql(
        "CREATE SEQUENCE attempts;
         CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF nextval('attempts') < 3 THEN RAISE EXCEPTION 'lost' USING ERRCODE = TG_ARGV[0]; END IF;
             RETURN NEW;
         END $$;",
    )
    .execute(&outside)
    .await
    .unwrap();
    for trigger in [
        "CREATE TRIGGER lose BEFORE INSERT OR UPDATE ON tower_idempotency_leases
         FOR EACH ROW EXECUTE FUNCTION lose('40P01')",
        "CREATE CONSTRAINT TRIGGER lose AFTER INSERT OR UPDATE ON tower_idempotency_leases
         DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION lose('40001')",
    ] {
        let drop = "DROP TRIGGER IF EXISTS lose ON tower_idempotency_leases";
        for sql in [drop, trigger] {
            sqlx::query(sql).execute(&outside).await.unwrap();
        }
        for cached in [100, 0] {
            let options = database.options().statement_cache_capacity(cached);
            let pool = pool(options, 1).await;
            let store = LeaseStore::new(pool.clone());
            let restart = async || {
                let sql = "ALTER SEQUENCE attempts RESTART";
                sqlx::query(sql).execute(&outside).await.unwrap();
            };
            restart().await;
            let claimed = claim(&store, &fresh_key(), &terms()).await;
            restart().await;
            store.renew(&claimed, LEASE).await.unwrap();
            restart().await;
            store
                .complete(&claimed, &response("done"), RETENTION)
                .await
                .unwrap();
            let attempts = "SELECT last_value FROM attempts";
            assert!(count(&outside, attempts).await > 2);
            assert_replays(&reserve(&store, claimed.key()).await, "done");
            // sqlx would begin by a savepoint if it counted a transaction that is over.
            let begun = pool.begin().await.unwrap();
            begun.rollback().await.unwrap();
        }
    }
}

/// As does a policy that hides the rows: the server says that nothing was written, and that nothing is there.
#[tokio::test]
async fn a_trigger_that_keeps_rows_from_the_table_is_an_error() {
    let database = database!();
    let (store, outside) = (database.leases(1).await, database.pool(1).await);
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    sqlx::raw_sql(
        "DELETE FROM tower_idempotency_leases;
         CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER skip BEFORE INSERT ON tower_idempotency_leases FOR EACH ROW EXECUTE FUNCTION skip()",
    )
    .execute(&outside)
    .await
    .unwrap();
    let reserved = store.reserve(&fresh_key(), &fingerprint(1), &terms()).await;
    let error = reserved.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other);
    let source = error.source().unwrap().to_string();
    assert!(source.contains("a trigger"), "{source}");
    let completed = store.complete(&claimed, &response("done"), RETENTION).await;
    assert_kind(completed, StoreErrorKind::Other);
}
