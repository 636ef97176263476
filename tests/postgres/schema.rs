//! The tables: who makes them, and what is said of one that isn't right.

use std::error::Error as _;

use sqlx::{AssertSqlSafe, Executor, PgPool};
use tokio::task::JoinSet;
use tower_idempotency::{
    StoreError, StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::{Store, TableName},
};

use super::database;
use crate::{postgres_support::*, servers};

pub(super) const TABLES: [&str; 2] = ["tower_idempotency_leases", "tower_idempotency_transactions"];

/// A database with nothing in it.
async fn empty() -> Option<Database> {
    Some(Database(servers::postgres()?.database().await))
}

pub(super) fn message(error: &StoreError) -> String {
    assert_eq!(error.kind(), StoreErrorKind::Other);
    error.source().unwrap().to_string()
}

pub(super) async fn execute(pool: &PgPool, sql: &str) {
    let query = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    query.execute(pool).await.unwrap();
}

#[tokio::test]
async fn processes_that_migrate_at_once_all_succeed() {
    let Some(database) = empty().await else {
        return;
    };
    for level in ["read committed", "serializable"] {
        let mut tasks = JoinSet::new();
        for _ in 0..8 {
            let setting = ("default_transaction_isolation", level);
            let pool = database.pool_with(1, setting).await;
            tasks.spawn(async move {
                LeaseStore::new(pool.clone()).migrate().await?;
                TransactionStore::new(pool).migrate().await
            });
        }
        for result in tasks.join_all().await {
            result.unwrap();
        }
        let pool = database.pool(1).await;
        let stores = (
            LeaseStore::new(pool.clone()),
            TransactionStore::new(pool.clone()),
        );
        stores.0.check().await.unwrap();
        stores.1.check().await.unwrap();
        for table in TABLES {
            execute(&pool, &format!("DROP TABLE {table}")).await;
        }
    }
}

#[tokio::test]
async fn migrating_twice_or_by_the_shipped_files_changes_nothing() {
    let Some(database) = empty().await else {
        return;
    };
    let pool = database.pool(1).await;
    let (lease, transaction) = (
        LeaseStore::new(pool.clone()),
        TransactionStore::new(pool.clone()),
    );
    let shipped = [
        include_str!("../../src/store/postgres/lease.sql"),
        include_str!("../../src/store/postgres/transaction.sql"),
    ];
    for script in shipped {
        execute(&pool, script).await;
    }
    lease.check().await.unwrap();
    transaction.check().await.unwrap();
    let key = fresh_key();
    let stores: [&dyn Store; 2] = [&lease, &transaction];
    for store in stores {
        let claimed = claim(store, &key, &terms()).await;
        store
            .complete(&claimed, &response("done"), RETENTION)
            .await
            .unwrap();
    }
    for script in shipped {
        execute(&pool, script).await;
    }
    lease.migrate().await.unwrap();
    transaction.migrate().await.unwrap();
    for store in stores {
        assert_replays(&reserve(store, &key).await, "done");
    }
}

#[tokio::test]
async fn a_schema_and_a_table_of_ones_own_are_used_for_everything() {
    let Some(database) = empty().await else {
        return;
    };
    let pool = database.pool(2).await;
    execute(&pool, "CREATE SCHEMA \"Payments\"").await;
    let longest = "a".repeat(48);
    for (name, quoted) in [
        ("idempotency_keys", "public.idempotency_keys".to_owned()),
        ("Payments.Select", "\"Payments\".\"Select\"".to_owned()),
        (
            &format!("Payments.{longest}"),
            format!("\"Payments\".{longest}"),
        ),
    ] {
        let table = |suffix: &str| -> TableName { format!("{name}{suffix}").parse().unwrap() };
        let lease = LeaseStore::new(pool.clone()).with_table(table(""));
        lease.migrate().await.unwrap();
        lease.migrate().await.unwrap();
        let claimed = claim(&lease, &fresh_key(), &terms()).await;
        lease.renew(&claimed, LEASE).await.unwrap();
        lease
            .complete(&claimed, &response("done"), RETENTION)
            .await
            .unwrap();
        assert_replays(&reserve(&lease, claimed.key()).await, "done");
        let rows = format!("SELECT count(*) FROM {quoted}");
        let rows: i64 = sqlx::query_scalar(AssertSqlSafe(rows))
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(rows, 1);
        let expiry = "SELECT count(*) FROM pg_indexes WHERE indexname LIKE '%\\_expires'";
        assert!(count(&pool, expiry).await > 0);
        assert!(lease.forget(claimed.key()).await.unwrap());
        execute(&pool, &format!("DROP TABLE {quoted}")).await;

        let transaction = TransactionStore::new(pool.clone()).with_table(table(""));
        transaction.migrate().await.unwrap();
        let claimed = claim(&transaction, &fresh_key(), &terms()).await;
        transaction
            .complete(&claimed, &response("done"), RETENTION)
            .await
            .unwrap();
        assert_replays(&reserve(&transaction, claimed.key()).await, "done");
        assert!(transaction.forget(claimed.key()).await.unwrap());
        transaction.purge_expired(10).await.unwrap();
    }
    let default = "SELECT count(*) FROM pg_class WHERE relname LIKE 'tower\\_idempotency%'";
    assert_eq!(count(&pool, default).await, 0);
}

#[tokio::test]
async fn a_missing_table_says_what_to_do() {
    let Some(database) = empty().await else {
        return;
    };
    let pool = database.pool(1).await;
    let (lease, transaction) = (
        LeaseStore::new(pool.clone()),
        TransactionStore::new(pool.clone()),
    );
    let elsewhere = LeaseStore::new(pool).with_table("no_such_schema.keys".parse().unwrap());
    let checks = [
        (lease.check().await, "tower_idempotency_leases"),
        (transaction.check().await, "tower_idempotency_transactions"),
        (elsewhere.check().await, "no_such_schema.keys"),
    ];
    for (result, table) in checks {
        let message = message(&result.unwrap_err());
        for part in [table, "is missing", "migrate()", ".sql"] {
            assert!(message.contains(part), "{message}");
        }
    }
    let stores: [&dyn Store; 3] = [&lease, &transaction, &elsewhere];
    for store in stores {
        store.ping().await.unwrap();
        let calls = [
            store.inspect(&fresh_key()).await.map(drop),
            store
                .reserve(&fresh_key(), &fingerprint(1), &terms())
                .await
                .map(drop),
            store.purge_expired(1).await.map(drop),
            store.forget(&fresh_key()).await.map(drop),
        ];
        for call in calls {
            let message = message(&call.unwrap_err());
            assert!(message.contains("migrate()"), "{message}");
        }
    }
}

/// As before there were steps.
#[tokio::test]
async fn a_lease_table_without_steps_is_refused_at_start() {
    let Some(database) = empty().await else {
        return;
    };
    let pool = database.pool(1).await;
    let store = LeaseStore::new(pool.clone());
    store.migrate().await.unwrap();
    execute(
        &pool,
        "ALTER TABLE tower_idempotency_leases DROP COLUMN steps",
    )
    .await;
    for refused in [store.migrate().await, store.check().await] {
        let message = message(&refused.unwrap_err());
        assert!(message.contains("lacks the column `steps`"), "{message}");
    }
}

/// What is done to the tables, and what the check says of it.
const WRONGS: [(&str, &str); 19] = [
    ("COMMENT ON TABLE {table} IS NULL", "comment"),
    ("COMMENT ON TABLE {table} IS 'ours'", "comment"),
    (
        "COMMENT ON TABLE {table} IS 'tower-idempotency {kind}, schema version 2'",
        "version 2 of a later release",
    ),
    (
        "COMMENT ON TABLE {table} IS 'tower-idempotency {kind}, schema version 0'",
        "version 0, this release needs version 1",
    ),
    (
        "COMMENT ON TABLE {table} IS 'tower-idempotency others, schema version 1'",
        "comment",
    ),
    (
        "ALTER TABLE {table} DROP COLUMN nonce",
        "lacks the column `nonce`",
    ),
    (
        "ALTER TABLE {table} RENAME COLUMN fence TO fences",
        "lacks the column `fence`",
    ),
    (
        "ALTER TABLE {table} ALTER COLUMN fence TYPE integer",
        "`fence` as integer instead of bigint",
    ),
    (
        "ALTER TABLE {table} ALTER COLUMN response TYPE text USING encode(response, 'hex')",
        "`response` as text instead of bytea",
    ),
    (
        "ALTER TABLE {table} ALTER COLUMN response SET NOT NULL",
        "`response` as NOT NULL",
    ),
    (
        "ALTER TABLE {table} ADD COLUMN tenant bigint NOT NULL",
        "`tenant` as NOT NULL without a default",
    ),
    (
        "ALTER TABLE {table} DROP CONSTRAINT {table}_pkey",
        "unique index on `record_key`",
    ),
    (
        "ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY (record_key, fence)",
        "unique index on `record_key`",
    ),
    (
        "ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD UNIQUE (record_key) DEFERRABLE",
        "unique index on `record_key`",
    ),
    ("DROP INDEX {table}_expires", "index on `expires`"),
    (
        "CREATE UNIQUE INDEX ON {table} (fingerprint)",
        "unique index without `record_key`",
    ),
    (
        "ALTER TABLE {table} ADD EXCLUDE (nonce WITH =)",
        "unique index without `record_key`",
    ),
    ("ALTER TABLE {table} SET UNLOGGED", "is no plain table"),
    (
        "ALTER TABLE {table} RENAME TO moved;
         CREATE VIEW {table} AS SELECT * FROM moved;
         COMMENT ON VIEW {table} IS 'tower-idempotency {kind}, schema version 1'",
        "is no plain table",
    ),
];

#[tokio::test]
async fn a_table_that_is_not_right_is_told_by_what_is_wrong() {
    let Some(database) = empty().await else {
        return;
    };
    let pool = database.pool(1).await;
    let (lease, transaction) = (
        LeaseStore::new(pool.clone()),
        TransactionStore::new(pool.clone()),
    );
    for (wrong, expected) in WRONGS {
        lease.migrate().await.unwrap();
        transaction.migrate().await.unwrap();
        for (table, kind) in TABLES.into_iter().zip(["leases", "transactions"]) {
            let sql = wrong.replace("{table}", table).replace("{kind}", kind);
            execute(&pool, &sql).await;
            let checks = match kind {
                "leases" => [lease.check().await, lease.migrate().await],
                _ => [transaction.check().await, transaction.migrate().await],
            };
            for result in checks {
                let message = message(&result.unwrap_err());
                assert!(message.contains(expected), "{sql}: {message}");
                assert!(message.contains(table), "{sql}: {message}");
            }
            let cleaning = "DROP TABLE IF EXISTS moved CASCADE";
            execute(&pool, cleaning).await;
            execute(&pool, &format!("DROP TABLE IF EXISTS {table}")).await;
        }
    }
    // What does no harm is nobody's business.
    lease.migrate().await.unwrap();
    for sql in [
        "ALTER TABLE tower_idempotency_leases ADD COLUMN note text",
        "ALTER TABLE tower_idempotency_leases ADD COLUMN made timestamptz NOT NULL DEFAULT now()",
        "CREATE INDEX ON tower_idempotency_leases (fence)",
        "CREATE UNIQUE INDEX ON tower_idempotency_leases (fence, record_key)",
    ] {
        execute(&pool, sql).await;
    }
    lease.check().await.unwrap();
    claim(&lease, &fresh_key(), &terms()).await;
}

#[tokio::test]
async fn one_kind_of_table_is_not_taken_for_the_other() {
    let Some(database) = empty().await else {
        return;
    };
    let pool = database.pool(1).await;
    let table: TableName = "keys".parse().unwrap();
    let lease = LeaseStore::new(pool.clone()).with_table(table.clone());
    let transaction = TransactionStore::new(pool).with_table(table);
    lease.migrate().await.unwrap();
    let message = message(&transaction.migrate().await.unwrap_err());
    assert!(
        message.contains("tower-idempotency transactions"),
        "{message}"
    );
    lease.check().await.unwrap();
}

#[tokio::test]
async fn a_server_that_starts_does_not_wait_for_those_that_run() {
    let database = database!();
    let running = database.transactions(1).await;
    let claimed = claim(&running, &fresh_key(), &terms()).await;
    // As an open transaction that has written to both tables.
    let writer = database.pool(1).await;
    let mut writing = writer.begin().await.unwrap();
    for table in TABLES {
        let lock = format!("LOCK TABLE {table} IN EXCLUSIVE MODE");
        writing
            .execute(sqlx::raw_sql(AssertSqlSafe(lock)))
            .await
            .unwrap();
    }
    let impatient = database.pool_with(1, ("lock_timeout", "1ms")).await;
    LeaseStore::new(impatient.clone()).migrate().await.unwrap();
    TransactionStore::new(impatient).migrate().await.unwrap();
    writing.rollback().await.unwrap();
    running.release(&claimed).await.unwrap();
}

/// In a snapshot from before its neighbour migrated, in one that only reads, or after a statement that failed.
#[tokio::test]
async fn migrating_ends_what_a_stranger_left_open_on_the_connection() {
    for left in [
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1",
        "BEGIN READ ONLY; SELECT 1",
        "BEGIN; CREATE TABLE strangers ()",
    ] {
        let Some(database) = empty().await else {
            return;
        };
        let pool = database.pool(1).await;
        execute(&pool, left).await;
        LeaseStore::new(pool.clone()).migrate().await.unwrap();
        execute(&pool, left).await;
        TransactionStore::new(pool.clone()).migrate().await.unwrap();
        let strangers = "SELECT count(*) FROM pg_class WHERE relname = 'strangers'";
        assert_eq!(count(&pool, strangers).await, 0);
        let ours = "SELECT count(*) FROM pg_class WHERE relname LIKE 'tower\\_idempotency%' AND relkind = 'r'";
        assert_eq!(count(&database.pool(1).await, ours).await, 2);
    }
}
