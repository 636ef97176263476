//! What the Postgres stores send: round trips, lost answers, poolers, and the plans of their statements.
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests"
)]

mod postgres_support;
mod servers;

use postgres_support::*;
use servers::{Fault, PgBouncer, Proxy};
use sqlx::{AssertSqlSafe, Executor, PgPool, Row};
use tokio::task::JoinSet;
use tower_idempotency::{
    StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::{Claim, Nonce, Reservation, Store, Takeover, Terms},
};

/// A database behind a proxy, and a pool of one connection through it.
async fn behind_proxy(cached: usize) -> Option<(Database, Proxy, PgPool)> {
    let database = Database::new().await?;
    let proxy = Proxy::start(&database.0);
    let options: sqlx::postgres::PgConnectOptions = proxy.url().parse().unwrap();
    let pool = pool(options.statement_cache_capacity(cached), 1).await;
    Some((database, proxy, pool))
}

/// How many round trips a call makes.
async fn trips<T>(proxy: &Proxy, call: impl Future<Output = T>) -> (usize, T) {
    let before = proxy.round_trips();
    let output = call.await;
    (proxy.round_trips() - before, output)
}

#[tokio::test]
async fn a_lease_store_makes_one_round_trip_per_call() {
    for (cached, complete) in [(100, 1), (0, 4)] {
        let Some((_database, proxy, pool)) = behind_proxy(cached).await else {
            return;
        };
        let store = LeaseStore::new(pool);
        // Each statement is prepared once per connection.
        use_leases(&store, &proxy).await;
        let measured = use_leases(&store, &proxy).await;
        let expected = [
            ("reserve", 1),
            ("in flight", 1),
            ("renew", 1),
            ("complete", complete),
            ("replay", 1),
            ("mismatch", 1),
            ("late release", 2),
            ("release", 1),
            ("reserve a released key", 2),
            ("abandon", 1),
            ("unknown", 1),
            ("take over", 2),
            ("reserve again", 2),
            ("inspect", 1),
            ("forget", 1),
            ("purge", 1),
            ("ping", 1),
        ];
        assert_eq!(measured, expected, "{cached}");
    }
}

async fn use_leases(store: &LeaseStore, proxy: &Proxy) -> Vec<(&'static str, usize)> {
    let mut measured = Vec::new();
    let (key, other) = (fresh_key(), fresh_key());
    let own = terms();
    let (count, claimed) = trips(proxy, claim(store, &key, &own)).await;
    measured.push(("reserve", count));
    let (count, _) = trips(proxy, reserve(store, &key)).await;
    measured.push(("in flight", count));
    let (count, renewed) = trips(proxy, store.renew(&claimed, LEASE)).await;
    renewed.unwrap();
    measured.push(("renew", count));
    let saved = response("done");
    let (count, completed) = trips(proxy, store.complete(&claimed, &saved, RETENTION)).await;
    completed.unwrap();
    measured.push(("complete", count));
    let (count, answer) = trips(proxy, reserve(store, &key)).await;
    assert_replays(&answer, "done");
    measured.push(("replay", count));
    let (count, _) = trips(proxy, store.reserve(&key, &fingerprint(2), &own)).await;
    measured.push(("mismatch", count));
    let (count, late) = trips(proxy, store.release(&claimed)).await;
    assert_kind(late, StoreErrorKind::LostClaim);
    measured.push(("late release", count));

    let claimed = claim(store, &other, &terms()).await;
    let (count, released) = trips(proxy, store.release(&claimed)).await;
    released.unwrap();
    measured.push(("release", count));
    let (count, claimed) = trips(proxy, claim(store, &other, &terms())).await;
    measured.push(("reserve a released key", count));
    let (count, abandoned) = trips(proxy, store.abandon(&claimed, RETENTION)).await;
    abandoned.unwrap();
    measured.push(("abandon", count));
    let (count, answer) = trips(proxy, reserve(store, &other)).await;
    assert!(matches!(answer, Reservation::Unknown));
    measured.push(("unknown", count));
    let again = terms().with_takeover(Takeover::RunAgain);
    let (count, _) = trips(proxy, claim(store, &other, &again)).await;
    measured.push(("take over", count));
    let (count, _) = trips(proxy, claim(store, &other, &again)).await;
    measured.push(("reserve again", count));
    let (count, _) = trips(proxy, store.inspect(&other)).await;
    measured.push(("inspect", count));
    let (count, _) = trips(proxy, store.forget(&other)).await;
    measured.push(("forget", count));
    let (count, _) = trips(proxy, store.purge_expired(100)).await;
    measured.push(("purge", count));
    let (count, _) = trips(proxy, store.ping()).await;
    measured.push(("ping", count));
    measured
}

/// Two more than BEGIN and COMMIT alone.
#[tokio::test]
async fn a_transaction_store_makes_two_round_trips_before_the_handler_and_two_after_it() {
    for (cached, complete) in [(100, 2), (0, 3)] {
        let Some((database, proxy, pool)) = behind_proxy(cached).await else {
            return;
        };
        let isolated = {
            let options = (*pool.connect_options()).clone();
            let setting = ("default_transaction_isolation", "serializable");
            postgres_support::pool(options.options([setting]), 1).await
        };
        let other = database.transactions(1).await;
        for pool in [pool, isolated] {
            let store = TransactionStore::new(pool.clone());
            use_transactions(&store, &other, (&proxy, &pool)).await;
            let measured = use_transactions(&store, &other, (&proxy, &pool)).await;
            let expected = [
                ("reserve", 2),
                ("duplicate here", 0),
                ("complete", complete),
                ("complete again", 0),
                ("replay", 2),
                ("release", 2),
                ("duplicate elsewhere", 2),
                ("inspect", 1),
                ("forget", 1),
                ("purge", 1),
                ("ping", 1),
            ];
            assert_eq!(measured, expected, "{cached}");
        }
    }
}

async fn use_transactions(
    store: &TransactionStore,
    other: &TransactionStore,
    (proxy, pool): (&Proxy, &PgPool),
) -> Vec<(&'static str, usize)> {
    let mut measured = Vec::new();
    let key = fresh_key();
    let (count, claimed) = trips(proxy, claim(store, &key, &terms())).await;
    measured.push(("reserve", count));
    let (count, _) = trips(proxy, reserve(store, &key)).await;
    measured.push(("duplicate here", count));
    let saved = response("done");
    for name in ["complete", "complete again"] {
        let (count, done) = trips(proxy, store.complete(&claimed, &saved, RETENTION)).await;
        done.unwrap();
        measured.push((name, count));
    }
    let (count, answer) = trips(proxy, reserve(store, &key)).await;
    assert_replays(&answer, "done");
    measured.push(("replay", count));
    // The rollback is left to the connection's way back into the pool.
    drop(pool.acquire().await.unwrap());
    let claimed = claim(store, &fresh_key(), &terms()).await;
    let (count, released) = trips(proxy, store.release(&claimed)).await;
    released.unwrap();
    measured.push(("release", count));
    let elsewhere = claim(other, &fresh_key(), &terms()).await;
    let (count, answer) = trips(proxy, reserve(store, elsewhere.key())).await;
    assert!(matches!(answer, Reservation::InFlight { .. }));
    measured.push(("duplicate elsewhere", count));
    drop(pool.acquire().await.unwrap());
    other.release(&elsewhere).await.unwrap();
    let (count, _) = trips(proxy, store.inspect(&key)).await;
    measured.push(("inspect", count));
    let (count, _) = trips(proxy, store.forget(&key)).await;
    measured.push(("forget", count));
    let (count, _) = trips(proxy, store.purge_expired(100)).await;
    measured.push(("purge", count));
    let (count, _) = trips(proxy, store.ping()).await;
    measured.push(("ping", count));
    measured
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_resolved_by_the_next_call() {
    for (fault, committed) in [(Fault::CutAfter, true), (Fault::CutBefore, false)] {
        for gives_up in [false, true] {
            let Some((database, proxy, pool)) = behind_proxy(100).await else {
                return;
            };
            let store = TransactionStore::new(pool);
            let outside = database.pool(1).await;
            let claimed = claim(&store, &fresh_key(), &terms()).await;
            charge(&mut take(&claimed), 10).await;
            let lost = proxy.inject(fault.on("COMMIT"));
            let complete = async || store.complete(&claimed, &response("done"), RETENTION).await;
            assert_kind(complete().await, StoreErrorKind::OutcomeUnknown);
            assert_eq!(lost.count(), 1);
            let resolved = if gives_up {
                store.release(&claimed).await
            } else {
                complete().await
            };
            match (committed, gives_up) {
                (true, false) | (false, true) => resolved.unwrap(),
                (true, true) => assert_kind(resolved, StoreErrorKind::LostClaim),
                (false, false) => assert_kind(resolved, StoreErrorKind::RolledBack),
            }
            assert_eq!(count(&outside, CHARGES).await, i64::from(committed));
            match reserve(&store, claimed.key()).await {
                Reservation::Acquired(_) => assert!(!committed),
                answer => {
                    assert!(committed);
                    assert_replays(&answer, "done");
                }
            }
        }
    }
}

/// Each statement of a transaction store's cycle but COMMIT: nothing happened, and the key is free.
#[tokio::test]
async fn a_connection_that_is_cut_before_the_commit_leaves_a_free_key() {
    for cut in [
        "pg_try_advisory_xact_lock",
        "SAVEPOINT tower_idempotency",
        "INSERT INTO charges",
        "INSERT INTO \"tower_idempotency_transactions\"",
    ] {
        for fault in [Fault::CutBefore, Fault::CutAfter] {
            let Some((database, proxy, pool)) = behind_proxy(100).await else {
                return;
            };
            let store = TransactionStore::new(pool);
            let outside = database.pool(1).await;
            let key = fresh_key();
            let struck = proxy.inject(fault.on(cut));
            let reserved = store.reserve(&key, &fingerprint(1), &terms()).await;
            if let Ok(Reservation::Acquired(claimed)) = reserved {
                let charge = run(&mut take(&claimed), "INSERT INTO charges VALUES (10)").await;
                let settled = match charge {
                    Ok(()) => store.complete(&claimed, &response("done"), RETENTION).await,
                    Err(_) => store.abandon(&claimed, RETENTION).await,
                };
                assert_eq!(settled.is_err(), cut.contains("transactions"), "{cut}");
            } else {
                assert_kind(reserved, StoreErrorKind::Unavailable);
            }
            assert_eq!(struck.count(), 1, "{cut}");
            // The server may need a moment to see that the connection has gone.
            let other = database.transactions(1).await;
            let again = loop {
                match reserve(&other, &key).await {
                    Reservation::InFlight { .. } => tokio::task::yield_now().await,
                    answer => break answer,
                }
            };
            assert!(
                matches!(again, Reservation::Acquired(_)),
                "{cut}: {again:?}"
            );
            assert_eq!(count(&outside, CHARGES).await, 0, "{cut}");
        }
    }
}

/// Named statements would meet others' of the same name, and unnamed ones be overwritten between two steps.
#[tokio::test]
async fn many_clients_share_two_connections_of_a_transaction_pooler() {
    const CLIENTS: i64 = 24;
    let Some(server) = servers::postgres() else {
        return;
    };
    let Some(bouncer) = PgBouncer::start(server, 2) else {
        return;
    };
    let database = Database::on(server).await;
    let options: sqlx::postgres::PgConnectOptions = bouncer.through(&database.0).parse().unwrap();
    let mut tasks = JoinSet::new();
    for client in 0..CLIENTS {
        let pool = pool(options.clone().statement_cache_capacity(0), 1).await;
        let leases = LeaseStore::new(pool.clone());
        let transactions = TransactionStore::new(pool.clone());
        tasks.spawn(async move {
            for round in 0..10 {
                use_both(&leases, &transactions, client * 100 + round + 1).await;
            }
        });
    }
    tasks.join_all().await;
    let outside = database.pool(1).await;
    assert_eq!(count(&outside, CHARGES).await, CLIENTS * 10);
    until(|| async { count(&outside, LOCKS).await == 0 }).await;
}

async fn use_both(leases: &LeaseStore, transactions: &TransactionStore, amount: i64) {
    let key = fresh_key();
    let leased = claim(leases, &key, &terms()).await;
    let ran = claim(transactions, &key, &terms()).await;
    let mut tx = take(&ran);
    let insert = sqlx::query("INSERT INTO charges (amount) VALUES ($1)").bind(amount);
    insert.persistent(false).execute(&mut *tx).await.unwrap();
    drop(tx);
    transactions
        .complete(&ran, &response("charged"), RETENTION)
        .await
        .unwrap();
    leases.renew(&leased, LEASE).await.unwrap();
    leases
        .complete(&leased, &response("leased"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(leases, &key).await, "leased");
    assert_replays(&reserve(transactions, &key).await, "charged");
    leases.purge_expired(10).await.unwrap();
    assert!(leases.forget(&key).await.unwrap());
}

/// The statements are those that the stores have prepared.
#[tokio::test]
async fn no_statement_reads_a_whole_table() {
    let Some(database) = Database::new().await else {
        return;
    };
    let pool = database.pool(1).await;
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
    // Eight and six: see `LeaseSql` and `TransactionSql`.
    assert_eq!(statements.len(), 14);
    let mut by_expiry = 0;
    for row in statements {
        let [name, statement, types]: [String; 3] = [row.get(0), row.get(1), row.get(2)];
        let types = types.trim_matches(['{', '}']).split(',');
        let values = types.map(|of| if of == "bytea" { r"'\x01'" } else { "1" });
        let values: Vec<&str> = values.collect();
        let explain = format!("EXPLAIN EXECUTE {name}({})", values.join(", "));
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
