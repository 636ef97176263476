//! How SQLite goes about the statements of both stores: by their indexes, however many records there are.

use sqlx::{AssertSqlSafe, SqlitePool, sqlite::SqlitePoolOptions};

use super::{LeaseStore, TransactionStore, lease_sql, transaction_sql};

#[tokio::test]
async fn no_statement_reads_a_whole_table() {
    let pool = migrated().await;
    for sql in [
        lease_sql::READ,
        lease_sql::CLAIM,
        lease_sql::RENEW,
        lease_sql::SETTLE,
        lease_sql::NOTE,
        lease_sql::NOTES,
        lease_sql::RELEASE,
        lease_sql::FORGET,
        lease_sql::PURGE,
        transaction_sql::READ,
        transaction_sql::SAVE,
        transaction_sql::FORGET,
        transaction_sql::ANY_EXPIRED,
        transaction_sql::PURGE,
    ] {
        let plan = plan(&pool, sql).await;
        let scans = |step: &String| step.starts_with("SCAN tower_") || step.contains("TEMP B-TREE");
        assert!(!plan.iter().any(scans), "{sql}: {plan:?}");
    }
}

#[tokio::test]
async fn records_are_found_by_key_and_purged_in_the_order_of_their_ends() {
    let pool = migrated().await;
    for (sql, index) in [
        (lease_sql::READ, "tower_idempotency_leases_key"),
        (lease_sql::PURGE, "tower_idempotency_leases_expires"),
        (transaction_sql::READ, "tower_idempotency_transactions_key"),
        (
            transaction_sql::PURGE,
            "tower_idempotency_transactions_expires",
        ),
    ] {
        let plan = plan(&pool, sql).await;
        let searches = |step: &String| step.starts_with("SEARCH") && step.contains(index);
        assert!(plan.iter().any(searches), "{sql}: {plan:?}");
    }
}

async fn migrated() -> SqlitePool {
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect("sqlite::memory:")
        .await
        .expect("a database");
    let (leases, transactions) = (
        LeaseStore::new(pool.clone()),
        TransactionStore::new(pool.clone()),
    );
    leases.migrate().await.expect("a table");
    transactions.migrate().await.expect("a table");
    pool
}

async fn plan(pool: &SqlitePool, sql: &str) -> Vec<String> {
    let steps: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")))
            .fetch_all(pool)
            .await
            .expect("a plan");
    steps.into_iter().map(|(.., step)| step).collect()
}
