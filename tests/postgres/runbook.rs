//! The SQL of `docs/operations.md`.

use sqlx::{AssertSqlSafe, PgPool, Row, postgres::PgRow};
use tower_idempotency::{RecordKey, postgres::TransactionStore, store::Store};

use crate::{database, postgres_support::*};

/// The document's statements for Postgres, about this key.
fn statements(key: &RecordKey) -> Vec<String> {
    let document = include_str!("../../docs/operations.md");
    let (_, sql) = document.split_once("-- Postgres").unwrap();
    let (sql, _) = sql.split_once("-- MySQL").unwrap();
    let lines = sql.lines().skip(1).filter(|line| !line.starts_with("--"));
    let digits: String = key.as_bytes().map(|byte| format!("{byte:02x}")).concat();
    let sql: Vec<_> = lines.collect();
    let sql = sql.join("\n").replace("<record key>", &digits);
    let sql = sql.replace("0123456789ab", &digits[..12]);
    let statements = sql.split_terminator(';').map(str::trim);
    let statements = statements.filter(|statement| !statement.is_empty());
    statements.map(str::to_owned).collect()
}

/// What the one statement with this in it finds.
async fn ask(outside: &PgPool, part: &str, key: &RecordKey) -> Vec<PgRow> {
    let mut found = statements(key);
    found.retain(|statement| statement.contains(part));
    assert_eq!(found.len(), 1, "{found:#?}");
    let sql = AssertSqlSafe(found.remove(0));
    sqlx::raw_sql(sql).fetch_all(outside).await.unwrap()
}

async fn holders(outside: &PgPool, key: &RecordKey) -> Vec<i32> {
    let rows = ask(outside, "pg_locks", key).await;
    rows.iter().map(|row| row.get("pid")).collect()
}

#[tokio::test]
async fn the_transaction_that_holds_a_key_is_found_among_others() {
    let database = database!();
    let outside = database.pool(1).await;
    // A lock's number has a sign.
    let keys = [0xfe, 0x01, 0x80].map(|byte| RecordKey::from_bytes([byte; 32]));
    let mut running = Vec::new();
    for key in &keys[..2] {
        let pool = database.pool(1).await;
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&pool)
            .await
            .unwrap();
        let store = TransactionStore::new(pool);
        let claimed = claim(&store, key, &terms()).await;
        running.push((key, pid, store, claimed));
    }
    for (key, pid, _, _) in &running {
        assert_eq!(holders(&outside, key).await, [*pid]);
    }
    assert!(holders(&outside, &keys[2]).await.is_empty());
    for (key, _, store, claimed) in &running {
        store.release(claimed).await.unwrap();
        assert!(holders(&outside, key).await.is_empty());
    }
}

#[tokio::test]
async fn a_record_is_found_by_the_digits_in_the_log() {
    let database = database!();
    let (store, outside) = (database.leases(1).await, database.pool(1).await);
    let (key, other) = (fresh_key(), fresh_key());
    for key in [&key, &other] {
        claim(&store, key, &terms()).await;
    }
    let logged = format!("{key:?}");
    let rows = ask(&outside, "LIKE", &key).await;
    let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(found.len(), 1);
    assert!(logged.contains(&found[0][..12]), "{logged}");
}

#[tokio::test]
async fn every_statement_is_one() {
    let database = database!();
    let outside = database.pool(1).await;
    let statements = statements(&fresh_key());
    assert!(statements.len() >= 5);
    for sql in statements {
        let found = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&outside).await;
        found.unwrap();
    }
}
