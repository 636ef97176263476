//! How Postgres goes about the statements of both stores: by their indexes, however many records there are.

use sqlx::{AssertSqlSafe, Executor, PgPool, Row};
use tower_idempotency::{
    StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::{Claim, Nonce, Note, Store, Takeover, Terms},
};

use super::trips::behind_proxy;
use crate::postgres_support::*;

/// The statements are those that the stores have prepared, or sent as they are.
#[tokio::test]
async fn no_statement_reads_a_whole_table() {
    let Some((_database, _proxy, pool)) = behind_proxy(100).await else {
        return;
    };
    fill(&pool).await;
    let leases = LeaseStore::new(pool.clone());
    let transactions = TransactionStore::new(pool.clone());
    // First, as it costs the connection.
    save_an_unknown_outcome(&transactions).await;
    use_every_statement(&leases).await;
    use_every_statement(&transactions).await;

    pool.execute("SET plan_cache_mode = force_generic_plan")
        .await
        .unwrap();
    let statements = sqlx::raw_sql(
        "SELECT name, statement, parameter_types::text FROM pg_prepared_statements
         WHERE statement LIKE '%\"tower_idempotency_%'",
    );
    let statements = statements.fetch_all(&pool).await.unwrap();
    // Ten and five: see `LeaseSql` and `TransactionSql`.
    assert_eq!(statements.len(), 15);
    let mut explained = Vec::new();
    for row in statements {
        let [name, statement, types]: [String; 3] = [row.get(0), row.get(1), row.get(2)];
        let types = types.trim_matches(['{', '}']).split(',');
        let values = types.map(|of| if of == "bytea" { r"'\x01'" } else { "1" });
        let values: Vec<&str> = values.collect();
        let explain = format!("EXPLAIN EXECUTE {name}({})", values.join(", "));
        explained.push((statement, explain));
    }
    let mut by_expiry = 0;
    for (statement, explain) in explained {
        let plan = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&pool).await;
        let plan: Vec<String> = plan.unwrap().iter().map(|line| line.get(0)).collect();
        let plan = plan.join("\n");
        assert!(!plan.contains("Seq Scan on tower"), "{statement}\n{plan}");
        assert!(
            plan.contains("Index Cond") || plan.contains("Arbiter Indexes"),
            "{statement}\n{plan}"
        );
        assert!(!plan.contains("Sort"), "{statement}\n{plan}");
        by_expiry += usize::from(plan.contains("_expires"));
    }
    assert_eq!(by_expiry, 2, "both purges");
}

async fn fill(pool: &PgPool) {
    sqlx::raw_sql(
        "INSERT INTO tower_idempotency_leases
             (record_key, fence, lease_end, expires, fingerprint_tag, attempt, state, fingerprint, nonce)
         SELECT sha256(number::text::bytea), 1, 9e15, 9e15 + number, 257, 1, 2, sha256(''), '\\x00000000000000000000000000000000'
         FROM generate_series(1, 5000) AS number;
         INSERT INTO tower_idempotency_transactions (record_key, fence, expires, fingerprint_tag, fingerprint, nonce)
         SELECT record_key, fence, expires, fingerprint_tag, fingerprint, nonce FROM tower_idempotency_leases;
         ANALYZE;",
    )
    .execute(pool)
    .await
    .unwrap();
}

async fn use_every_statement(store: &dyn Store) {
    let key = fresh_key();
    let again = || {
        let terms = Terms::new(Nonce::random(), LEASE, RETENTION);
        terms.with_takeover(Takeover::RunAgain)
    };
    let first = claim(store, &key, &again()).await;
    store.renew(&first, LEASE).await.unwrap();
    if let Some(steps) = store.steps() {
        steps.note(&first, &Note::new("step", "1")).await.unwrap();
        steps.notes(&first).await.unwrap();
    }
    store.release(&first).await.unwrap();
    let second = claim(store, &key, &again()).await;
    store
        .complete(&second, &response("done"), RETENTION)
        .await
        .unwrap();
    assert!(store.inspect(&key).await.unwrap().is_some());
    assert!(store.forget(&key).await.unwrap());
    store.purge_expired(1).await.unwrap();
}

async fn save_an_unknown_outcome(store: &TransactionStore) {
    let claimed: Claim = claim(store, &fresh_key(), &terms()).await;
    run(&mut take(&claimed), "COMMIT").await.unwrap();
    assert_kind(store.release(&claimed).await, StoreErrorKind::Misused);
}
