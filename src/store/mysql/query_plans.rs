//! How the server goes about the statements of both stores: by their indexes, also where a table has few rows.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use sqlx::{AssertSqlSafe, MySqlPool, Row};

use super::{
    LeaseStore, TransactionStore,
    as_mysql::as_mysql_reads,
    lease_sql::LeaseSql,
    schema::{LEASES, TRANSACTIONS},
    servers,
    statement::{NOW, literal},
    transaction_sql::TransactionSql,
    upkeep::UpkeepSql,
};
use crate::{
    Fingerprint, RecordKey, Tag,
    store::{Claim, Nonce, TableName, Terms},
};

const KEY: RecordKey = RecordKey::from_bytes([7; 32]);

#[tokio::test]
async fn statements_find_their_rows_by_key_and_a_purge_by_expiry() {
    let Some(server) = servers::mariadb() else {
        return;
    };
    let pool = MySqlPool::connect(&server.database().await).await.unwrap();
    let (lease, transaction) = (
        LeaseStore::new(pool.clone()),
        TransactionStore::new(pool.clone()),
    );
    lease.migrate().await.unwrap();
    transaction.migrate().await.unwrap();
    let claim = claim();
    for (rows, kind) in [(5, "few"), (3_000, "many")] {
        for table in [LEASES.table, TRANSACTIONS.table] {
            fill(&pool, table, rows).await;
        }
        for (statements, table) in [
            (lease_statements(), LEASES.table),
            (transaction_statements(&claim), TRANSACTIONS.table),
        ] {
            let mut seen = 0;
            for statement in statements.iter().flat_map(|script| script.split(';')) {
                let Some(statement) = explainable(statement) else {
                    continue;
                };
                let index = if statement.contains("ORDER BY expires") {
                    "expires"
                } else {
                    "PRIMARY"
                };
                assert_uses(&pool, table, &statement, index, kind).await;
                seen += 1;
            }
            assert!(seen >= 8, "{table}: {seen}");
        }
    }
}

fn lease_statements() -> Vec<String> {
    let table = TableName::of(LEASES.table);
    let (sql, upkeep) = (LeaseSql::new(&table), UpkeepSql::new(&table));
    let mut statements: Vec<String> = [
        &sql.read,
        &sql.claim_over,
        &sql.renew,
        &sql.settle,
        &sql.note,
        &sql.notes,
        &sql.release,
        &sql.forget,
        &upkeep.expired,
    ]
    .map(|statement| statement.text().as_str().to_owned())
    .into();
    statements.extend(upkeep.delete(&keys()));
    statements
}

fn transaction_statements(claim: &Claim) -> Vec<String> {
    let table = TableName::of(TRANSACTIONS.table);
    let (sql, upkeep) = (TransactionSql::new(&table), UpkeepSql::new(&table));
    let mut statements: Vec<String> = [&sql.read, &sql.save, &sql.forget, &upkeep.expired]
        .map(|statement| statement.text().as_str().to_owned())
        .into();
    let terms = Terms::new(claim.nonce(), Default::default(), Default::default());
    statements.extend([
        sql.open_over_expired(&KEY, claim.fingerprint(), &terms),
        sql.look_uncommitted(&KEY),
        sql.is_committed(claim),
        sql.read_locked(&KEY),
        sql.save_unknown(claim, Default::default()),
    ]);
    statements.extend(upkeep.delete(&keys()));
    statements
}

/// As many as a purge deletes at once.
fn keys() -> Vec<Vec<u8>> {
    let key = |number: u16| [KEY.as_bytes()[..30].to_vec(), number.to_be_bytes().into()].concat();
    (0x0707..0x0707 + 500).map(key).collect()
}

fn claim() -> Claim {
    let fingerprint = Fingerprint::new(Tag::from_u16(1), [1; 32]);
    Claim::new(KEY, fingerprint, Nonce::from_bytes([7; 16]), 1, 1)
}

/// With arguments, and without what can't be explained.
fn explainable(statement: &str) -> Option<String> {
    let statement = as_mysql_reads(statement)
        .replace("LIMIT ?", "LIMIT 500")
        .replace(
            "record_key = ?",
            &format!("record_key = {}", literal(KEY.as_bytes())),
        )
        // What a unique key finds is looked at for the plan, and no plan is needed for a row that isn't meant.
        .replace("nonce = ?", &format!("nonce = {}", literal(&[7; 16])))
        // As in a handler's session.
        .replace("@@SESSION.autocommit", "0")
        .replace('?', "x'07'");
    let statement = statement.trim().to_owned();
    let has_rows = statement.contains("record_key");
    let kinds = ["SELECT", "UPDATE", "DELETE"];
    (has_rows && kinds.iter().any(|kind| statement.starts_with(kind))).then_some(statement)
}

async fn fill(pool: &MySqlPool, table: &str, rows: u32) {
    let more = if table == LEASES.table {
        ", attempt = 1, state = 0, lease_end = expires"
    } else {
        ""
    };
    for number in 1..=rows {
        let key = if number == 1 {
            literal(KEY.as_bytes())
        } else {
            "CONCAT(RANDOM_BYTES(16), RANDOM_BYTES(16))".to_owned()
        };
        // A few of them expired.
        let expires = if number % 5 == 0 {
            "1".to_owned()
        } else {
            format!("{NOW} + 60000000")
        };
        let sql = format!(
            "INSERT IGNORE INTO {table} SET record_key = {key}, fingerprint_tag = 1, fingerprint = REPEAT('f', 32),
                 nonce = REPEAT(CHAR(7), 16), fence = 1, expires = {expires}{more}"
        );
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(pool)
            .await
            .unwrap();
    }
    let analyze = AssertSqlSafe(format!("ANALYZE TABLE {table}"));
    sqlx::raw_sql(analyze).fetch_all(pool).await.unwrap();
}

async fn assert_uses(pool: &MySqlPool, table: &str, statement: &str, index: &str, rows: &str) {
    let explain = AssertSqlSafe(format!("EXPLAIN {statement}"));
    let plan = sqlx::raw_sql(explain).fetch_all(pool).await.unwrap();
    let steps: Vec<[Option<String>; 3]> = plan
        .iter()
        .map(|step| ["table", "type", "key"].map(|column| step.get(column)))
        .collect();
    let ours = [table, "record"];
    let is_ours =
        |step: &&[Option<String>; 3]| step[0].as_deref().is_some_and(|name| ours.contains(&name));
    let own: Vec<_> = steps.iter().filter(is_ours).collect();
    let [[_, Some(access), key]] = *own else {
        panic!("{rows}: {statement:.300}: {steps:?}");
    };
    let ways = ["const", "eq_ref", "ref", "range"];
    assert!(
        ways.contains(&access.as_str()) && key.as_deref() == Some(index),
        "{rows}: {statement:.300}: {steps:?}"
    );
}
