//! The stores' tables: made once, and checked at start-up.

use sqlx::{AssertSqlSafe, Executor};
use tokio::task::JoinSet;
use tower_idempotency::{
    StoreErrorKind,
    mysql::{LeaseStore, TransactionStore},
    store::{Store, TableName},
};

use super::database;
use crate::mysql_support::*;

const LEASE_SQL: &str = include_str!("../../src/store/mysql/lease.sql");
const TRANSACTION_SQL: &str = include_str!("../../src/store/mysql/transaction.sql");

#[tokio::test]
async fn migrating_twice_or_by_the_shipped_files_changes_nothing() {
    let database = database!();
    let pool = database.pool(1).await;
    let (lease, transaction) = (
        LeaseStore::new(pool.clone()),
        TransactionStore::new(pool.clone()),
    );
    for _ in 0..2 {
        pool.execute(sqlx::raw_sql(LEASE_SQL)).await.unwrap();
        pool.execute(sqlx::raw_sql(TRANSACTION_SQL)).await.unwrap();
        lease.check().await.unwrap();
        transaction.check().await.unwrap();
    }
    for store in [&lease as &dyn Store, &transaction] {
        let claimed = claim(store, &fresh_key(), &terms()).await;
        complete(store, &claimed, "done").await.unwrap();
        lease.migrate().await.unwrap();
        transaction.migrate().await.unwrap();
        assert_replays(&reserve(store, claimed.key()).await, "done");
    }
}

#[tokio::test]
async fn processes_that_migrate_at_once_all_succeed() {
    let database = database!();
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let pool = database.pool(1).await;
        tasks.spawn(async move {
            if number % 2 == 0 {
                LeaseStore::new(pool).migrate().await
            } else {
                TransactionStore::new(pool).migrate().await
            }
        });
    }
    for migrated in tasks.join_all().await {
        migrated.unwrap();
    }
}

#[tokio::test]
async fn a_table_may_have_any_name_in_any_database() {
    let (database, elsewhere) = (database!(), database!());
    let pool = database.pool(2).await;
    let schema = elsewhere.options.get_database().unwrap();
    for name in ["Keys_2".to_owned(), format!("{schema}.select")] {
        let name: TableName = name.parse().unwrap();
        let lease = LeaseStore::new(pool.clone()).with_table(name.clone());
        let error = lease.check().await.unwrap_err();
        assert!(cause(&error).contains(&name.to_string()), "{error:?}");
        lease.migrate().await.unwrap();
        let claimed = claim(&lease, &fresh_key(), &terms()).await;
        complete(&lease, &claimed, "done").await.unwrap();
        assert_replays(&reserve(&lease, claimed.key()).await, "done");
        assert!(lease.forget(claimed.key()).await.unwrap());
        lease.purge_expired(1).await.unwrap();
        lease.ping().await.unwrap();

        // The other store's table isn't taken for one's own.
        let transaction = TransactionStore::new(pool.clone()).with_table(name);
        assert_kind(transaction.migrate().await, StoreErrorKind::Other);
    }
    let name: TableName = format!("{schema}.transactions").parse().unwrap();
    let transaction = TransactionStore::new(pool.clone()).with_table(name.clone());
    transaction.migrate().await.unwrap();
    let claimed = claim(&transaction, &fresh_key(), &terms()).await;
    complete(&transaction, &claimed, "done").await.unwrap();
    let there = AssertSqlSafe(format!(
        "SELECT count(*) FROM {name} WHERE response IS NOT NULL"
    ));
    let rows: i64 = sqlx::query_scalar(there).fetch_one(&pool).await.unwrap();
    assert_eq!(rows, 1);
}

/// As before there were steps.
#[tokio::test]
async fn a_lease_table_without_steps_is_refused_at_start() {
    let pool = database!().pool(1).await;
    let store = LeaseStore::new(pool.clone());
    store.migrate().await.unwrap();
    sqlx::query("ALTER TABLE tower_idempotency_leases DROP COLUMN steps")
        .execute(&pool)
        .await
        .unwrap();
    for refused in [store.migrate().await, store.check().await] {
        let error = refused.unwrap_err();
        assert!(
            cause(&error).contains("column steps is missing"),
            "{error:?}"
        );
    }
}

/// What was altered, and what is told.
const WRONG: [(&str, &str); 18] = [
    (
        "ADD id INT NOT NULL AUTO_INCREMENT, ADD KEY (id)",
        "column id is AUTO_INCREMENT",
    ),
    ("DROP COLUMN nonce", "column nonce is missing"),
    (
        "MODIFY nonce VARBINARY(16) NOT NULL",
        "column nonce is varbinary(16), and not binary(16)",
    ),
    (
        "MODIFY record_key BINARY(16) NOT NULL",
        "column record_key is binary(16), and not binary(32)",
    ),
    (
        "MODIFY fence INT NOT NULL",
        "column fence is int, and not bigint",
    ),
    (
        "MODIFY fence BIGINT UNSIGNED NOT NULL",
        "column fence is bigint unsigned, and not bigint",
    ),
    (
        "MODIFY response BLOB",
        "column response is blob, and not longblob",
    ),
    (
        "MODIFY response LONGBLOB NOT NULL",
        "column response is NOT NULL",
    ),
    ("MODIFY expires BIGINT", "column expires is NULL"),
    ("ADD tenant INT NOT NULL", "column tenant has no default"),
    ("DROP PRIMARY KEY", "the primary key isn't (record_key)"),
    (
        "DROP PRIMARY KEY, ADD PRIMARY KEY (record_key, nonce)",
        "the primary key isn't (record_key)",
    ),
    ("DROP KEY expires", "an index on expires is missing"),
    ("ADD UNIQUE KEY one (fingerprint)", "index one is unique"),
    ("ENGINE = MyISAM", "its engine is MyISAM, and not InnoDB"),
    ("COMMENT = ''", "has the comment ''"),
    (
        "COMMENT = 'tower-idempotency {kind}, schema version 0'",
        "has the comment",
    ),
    (
        "COMMENT = 'tower-idempotency {kind}, schema version 2'",
        "has schema version 2",
    ),
];

#[tokio::test]
async fn a_table_that_is_wrong_in_any_way_is_refused_and_told_how() {
    let database = database!();
    let pool = database.pool(1).await;
    for (change, told) in WRONG {
        for kind in ["leases", "transactions"] {
            let table = format!("tower_idempotency_{kind}");
            let sql = if kind == "leases" {
                LEASE_SQL
            } else {
                TRANSACTION_SQL
            };
            let change = change.replace("{kind}", kind);
            let sql = format!("DROP TABLE IF EXISTS {table}; {sql} ALTER TABLE {table} {change}");
            pool.execute(sqlx::raw_sql(AssertSqlSafe(sql)))
                .await
                .unwrap();
            let (lease, transaction) = (
                LeaseStore::new(pool.clone()),
                TransactionStore::new(pool.clone()),
            );
            let checks = if kind == "leases" {
                [lease.check().await, lease.migrate().await]
            } else {
                [transaction.check().await, transaction.migrate().await]
            };
            for check in checks {
                let error = check.unwrap_err();
                assert_eq!(error.kind(), StoreErrorKind::Other);
                let cause = cause(&error);
                assert!(
                    cause.contains(told) && cause.contains(&table),
                    "{change}: {cause}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_table_that_a_team_has_extended_is_good_enough() {
    let database = database!();
    let pool = database.pool(1).await;
    let lease = database.lease(1).await;
    let sql = "ALTER TABLE tower_idempotency_leases ADD note VARCHAR(20), ADD made INT NOT NULL DEFAULT 0,
                   ADD seen TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, ADD KEY (fence), ADD KEY (expires, fence)";
    pool.execute(sql).await.unwrap();
    lease.check().await.unwrap();
    let claim = claim(&lease, &fresh_key(), &terms()).await;
    complete(&lease, &claim, "done").await.unwrap();
}

/// What would be written then is never committed, or not before the next claim; or the server hangs up. A lease store commits
/// what it writes in any case.
#[tokio::test]
async fn sessions_in_which_a_statement_is_not_committed_by_itself_are_refused() {
    let database = database!();
    database.lease(1).await;
    database.transaction(1).await;
    for (setting, is_fit_for_leases) in [
        ("autocommit = 0", true),
        ("completion_type = 'CHAIN'", false),
        ("completion_type = 'RELEASE'", false),
    ] {
        let sessions = database.clone().with(&format!("SET SESSION {setting}"));
        let pool = sessions.pool(1).await;
        let lease = LeaseStore::new(pool.clone()).check().await;
        assert_eq!(lease.is_ok(), is_fit_for_leases, "{setting}");
        let transaction = TransactionStore::new(pool).check().await;
        let (name, _) = setting.split_once(' ').unwrap();
        for error in [lease.err(), transaction.err()].into_iter().flatten() {
            assert!(cause(&error).contains(name), "{setting}: {error:?}");
        }
    }
}
