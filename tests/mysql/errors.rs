//! Errors of the server, by their numbers: which are retried, and what becomes of the others.

use sqlx::{AssertSqlSafe, Executor, MySqlPool};
use tower_idempotency::{StoreErrorKind, mysql::TransactionStore, store::Store};

use super::database;
use crate::mysql_support::*;

/// Lets the next writes to a table fail with this error, whatever they write.
async fn fail(outside: &MySqlPool, table: &str, event: &str, errno: u16) {
    let sql = format!(
        "CREATE OR REPLACE TRIGGER refuse BEFORE {event} ON {table} FOR EACH ROW
             SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {errno}, MESSAGE_TEXT = 'refused'"
    );
    outside
        .execute(sqlx::raw_sql(AssertSqlSafe(sql)))
        .await
        .unwrap();
}

#[tokio::test]
async fn errors_are_told_by_their_numbers() {
    let database = database!();
    let outside = database.shop().await;
    let (lease, transaction) = (database.lease(1).await, database.transaction(1).await);
    for (store, table) in [
        (&lease as &dyn Store, "tower_idempotency_leases"),
        (&transaction, "tower_idempotency_transactions"),
    ] {
        for (errno, kind) in [
            (1114, StoreErrorKind::Full),
            (1021, StoreErrorKind::Full),
            (1053, StoreErrorKind::Unavailable),
            (1290, StoreErrorKind::Other),
            (1317, StoreErrorKind::Unavailable),
            // Again and again, and never taken for a record.
            (1205, StoreErrorKind::Other),
            (1213, StoreErrorKind::Other),
            (1062, StoreErrorKind::Other),
            (1048, StoreErrorKind::Other),
        ] {
            fail(&outside, table, "INSERT", errno).await;
            let refused = store.reserve(&fresh_key(), &fingerprint(1), &terms()).await;
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), kind, "{errno}");
            assert!(cause(&error).contains("refused"), "{error:?}");
        }
        outside.execute("DROP TRIGGER refuse").await.unwrap();
        let claim = claim(store, &fresh_key(), &terms()).await;
        complete(store, &claim, "done").await.unwrap();
    }
}

#[tokio::test]
async fn what_was_begun_is_undone_if_the_record_can_not_be_written() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(1).await;
    let store = TransactionStore::new(pool.clone());
    store.migrate().await.unwrap();
    for (errno, kind) in [
        (1114, StoreErrorKind::RolledBack),
        (1062, StoreErrorKind::RolledBack),
        (1205, StoreErrorKind::Conflict),
    ] {
        // Before the transaction, which nobody alters its tables under.
        fail(&outside, "tower_idempotency_transactions", "UPDATE", errno).await;
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        run(&mut take(&claimed), CHARGE).await.unwrap();
        let error = complete(&store, &claimed, "done").await.unwrap_err();
        assert_eq!(error.kind(), kind, "{errno}");
        assert!(cause(&error).contains("refused"), "{error:?}");
        outside.execute("DROP TRIGGER refuse").await.unwrap();
        assert_eq!(count(&outside, CHARGES).await, 0);
        assert_eq!(count(&pool, "SELECT @@autocommit").await, 1);
        let next = claim(&store, claimed.key(), &terms()).await;
        complete(&store, &next, "next").await.unwrap();
    }
}

/// The next three writes lose. The count is kept by an engine that doesn't roll back.
async fn lose(outside: &MySqlPool, table: &str, event: &str, errno: u16) {
    let sql = format!(
        "CREATE TABLE IF NOT EXISTS losses (left_over INT NOT NULL) ENGINE = MyISAM;
         DELETE FROM losses; INSERT INTO losses VALUES (3);
         CREATE OR REPLACE TRIGGER lose BEFORE {event} ON {table} FOR EACH ROW
         BEGIN
             IF (SELECT left_over FROM losses) > 0 THEN
                 UPDATE losses SET left_over = left_over - 1;
                 SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = {errno}, MESSAGE_TEXT = 'lost';
             END IF;
         END"
    );
    outside
        .execute(sqlx::raw_sql(AssertSqlSafe(sql)))
        .await
        .unwrap();
}

#[tokio::test]
async fn who_lost_against_another_transaction_tries_again() {
    let database = database!();
    let outside = database.shop().await;
    let (lease, transaction) = (database.lease(1).await, database.transaction(1).await);
    let lost = async || 3 - count(&outside, "SELECT left_over FROM losses").await;
    for errno in [1213, 1205, 1020] {
        lose(&outside, "tower_idempotency_leases", "INSERT", errno).await;
        let claimed = claim(&lease, &fresh_key(), &terms()).await;
        assert_eq!(lost().await, 3);
        lose(&outside, "tower_idempotency_leases", "UPDATE", errno).await;
        lease.renew(&claimed, LEASE).await.unwrap();
        assert_eq!(lost().await, 3);
        lose(&outside, "tower_idempotency_leases", "UPDATE", errno).await;
        complete(&lease, &claimed, "done").await.unwrap();
        assert_eq!(lost().await, 3);
        outside.execute("DROP TRIGGER lose").await.unwrap();

        lose(&outside, "tower_idempotency_transactions", "INSERT", errno).await;
        let claimed = claim(&transaction, &fresh_key(), &terms()).await;
        assert_eq!(lost().await, 3);
        complete(&transaction, &claimed, "done").await.unwrap();
        outside.execute("DROP TRIGGER lose").await.unwrap();
    }
}
