//! What the server refuses is told as what it is, and never taken for a record.

use std::{str::FromStr, time::Duration};

use sqlx::{
    AssertSqlSafe, Executor, MySqlPool,
    mysql::{MySqlConnectOptions, MySqlPoolOptions},
};
use tower_idempotency::{
    StoreErrorKind,
    mysql::{LeaseStore, TransactionStore},
    store::{Note, Reservation, Store},
};
use uuid::Uuid;

use super::{
    database,
    servers::{MariaDb, Proxy},
};
use crate::mysql_support::*;

#[tokio::test]
async fn a_missing_table_says_what_to_do_and_leaves_nothing_behind() {
    let database = database!();
    let pool = database.pool(1).await;
    let (lease, transaction) = (
        LeaseStore::new(pool.clone()),
        TransactionStore::new(pool.clone()),
    );
    for store in [&lease as &dyn Store, &transaction] {
        let key = fresh_key();
        let id = "SELECT CONNECTION_ID()";
        let before = count(&pool, id).await;
        for _ in 0..2 {
            let error = store
                .reserve(&key, &fingerprint(1), &terms())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Other);
            assert!(cause(&error).contains("migrate()"), "{error:?}");
        }
        assert_kind(store.ping().await, StoreErrorKind::Other);
        assert_eq!(count(&pool, id).await, before, "the connection is in order");
        assert_eq!(count(&pool, "SELECT @@autocommit").await, 1);
    }
    lease.migrate().await.unwrap();
    transaction.migrate().await.unwrap();
    for store in [&lease as &dyn Store, &transaction] {
        let claim = claim(store, &fresh_key(), &terms()).await;
        complete(store, &claim, "done").await.unwrap();
    }
}

/// A user of the test's database who may do this with the stores' tables.
async fn user(database: &Database, privileges: &str) -> MySqlPool {
    let name = format!("u{}", &Uuid::new_v4().simple().to_string()[..16]);
    let schema = database.options.get_database().unwrap();
    let outside = database.pool(1).await;
    let sql = format!(
        "CREATE USER {name}@'%' IDENTIFIED BY 'secret';
         GRANT {privileges} ON {schema}.tower_idempotency_leases TO {name}@'%';
         GRANT {privileges} ON {schema}.tower_idempotency_transactions TO {name}@'%'"
    );
    outside
        .execute(sqlx::raw_sql(AssertSqlSafe(sql)))
        .await
        .unwrap();
    let options = MySqlConnectOptions::from_str(&database.url).unwrap();
    MySqlPoolOptions::new()
        .max_connections(20)
        .acquire_timeout(Duration::from_secs(2))
        .connect_with(options.username(&name).password("secret"))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_user_who_may_read_and_write_the_rows_may_do_everything_but_create() {
    let database = database!();
    database.lease(1).await;
    database.transaction(1).await;
    let pool = user(&database, "SELECT, INSERT, UPDATE, DELETE").await;
    let (lease, transaction) = (
        LeaseStore::new(pool.clone()),
        TransactionStore::new(pool.clone()),
    );
    lease.migrate().await.unwrap();
    transaction.migrate().await.unwrap();
    for store in [&lease as &dyn Store, &transaction] {
        let claimed = claim(store, &fresh_key(), &terms()).await;
        assert!(matches!(
            reserve(store, claimed.key()).await,
            Reservation::InFlight { .. }
        ));
        store.renew(&claimed, LEASE).await.unwrap();
        complete(store, &claimed, "done").await.unwrap();
        assert_replays(&reserve(store, claimed.key()).await, "done");
        complete(store, &claimed, "done").await.unwrap();
        assert!(store.forget(claimed.key()).await.unwrap());
        store.purge_expired(10).await.unwrap();
        store.ping().await.unwrap();
        let released = claim(store, &fresh_key(), &terms()).await;
        store.release(&released).await.unwrap();
    }
    let table = "nowhere_to_be_found".parse().unwrap();
    let error = LeaseStore::new(pool)
        .with_table(table)
        .migrate()
        .await
        .unwrap_err();
    assert!(cause(&error).contains("privilege"), "{error:?}");
}

#[tokio::test]
async fn a_lacking_privilege_is_told_at_start_and_claims_nothing() {
    let database = database!();
    let (lease, transaction) = (database.lease(1).await, database.transaction(1).await);
    for (privileges, told) in [
        ("SELECT", ["INSERT", "INSERT"]),
        ("SELECT, INSERT", ["UPDATE", "UPDATE"]),
        ("SELECT, INSERT, UPDATE", ["", "DELETE"]),
    ] {
        let pool = user(&database, privileges).await;
        let checks = [
            LeaseStore::new(pool.clone()).check().await,
            TransactionStore::new(pool).migrate().await,
        ];
        for (check, told) in checks.iter().zip(told) {
            let problem = check.as_ref().err().map(cause).unwrap_or_default();
            assert_eq!(
                problem.is_empty(),
                told.is_empty(),
                "{privileges}: {problem}"
            );
            assert!(problem.contains(told), "{privileges}: {problem}");
        }
    }
    let pool = user(&database, "SELECT").await;
    let key = fresh_key();
    for store in [
        &LeaseStore::new(pool.clone()) as &dyn Store,
        &TransactionStore::new(pool.clone()),
    ] {
        let error = store
            .reserve(&key, &fingerprint(1), &terms())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other);
        assert!(cause(&error).contains("privilege"), "{error:?}");
        store.ping().await.unwrap();
    }
    for store in [&lease as &dyn Store, &transaction] {
        assert!(store.inspect(&key).await.unwrap().is_none());
        claim(store, &key, &terms()).await;
    }
}

#[tokio::test]
async fn a_closed_pool_and_a_killed_connection_are_unavailable() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(1).await;
    let store = TransactionStore::new(pool.clone());
    store.migrate().await.unwrap();
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    let mut tx = take(&claimed);
    run(&mut tx, CHARGE).await.unwrap();
    let id = count_on(&mut tx, "SELECT CONNECTION_ID()").await;
    drop(tx);
    outside
        .execute(AssertSqlSafe(format!("KILL {id}")))
        .await
        .unwrap();
    assert_kind(
        complete(&store, &claimed, "done").await,
        StoreErrorKind::RolledBack,
    );
    assert_eq!(count(&outside, CHARGES).await, 0);
    let next = claim(&store, claimed.key(), &terms()).await;
    store.release(&next).await.unwrap();
    pool.close().await;
    for error in [
        store.ping().await.unwrap_err(),
        store
            .reserve(claimed.key(), &fingerprint(1), &terms())
            .await
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    }
}

/// A lock on the whole table, as a backup or an operator may take it, is waited for as long as the session waits.
#[tokio::test]
async fn a_locked_row_is_an_error_when_the_session_does_not_wait_any_longer() {
    let database = database!();
    let outside = database.shop().await;
    let proxy = Proxy::start(&database.url);
    let store = Database::at(proxy.url().to_owned())
        .with("SET SESSION innodb_lock_wait_timeout = 6")
        .lease(1)
        .await;
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    let mut operator = outside.begin().await.unwrap();
    run(
        &mut operator,
        "UPDATE tower_idempotency_leases SET attempt = 7",
    )
    .await
    .unwrap();
    let refused = store.renew(&claimed, LEASE).await;
    assert_kind(refused, StoreErrorKind::Other);
    let renewals = proxy.count("(expires - lease_end)");
    assert_eq!(renewals, 1, "a wait as long as that isn't repeated");
    operator.rollback().await.unwrap();
    store.renew(&claimed, LEASE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_only_reads_is_unavailable_and_still_replays() {
    let Some(server) = MariaDb::start() else {
        return;
    };
    let database = Database::at(server.database().await);
    let outside = database.shop().await;
    let (lease, transaction) = (database.lease(1).await, database.transaction(1).await);
    let pool = user(&database, "SELECT, INSERT, UPDATE, DELETE").await;
    let stores: [(&dyn Store, &dyn Store); 2] = [
        (&lease, &LeaseStore::new(pool.clone())),
        (&transaction, &TransactionStore::new(pool.clone())),
    ];
    outside.execute("SET GLOBAL read_only = 1").await.unwrap();
    LeaseStore::new(pool.clone()).migrate().await.unwrap();
    TransactionStore::new(pool.clone()).migrate().await.unwrap();
    outside.execute("SET GLOBAL read_only = 0").await.unwrap();
    for (owner, user) in stores {
        let done = claim(owner, &fresh_key(), &terms()).await;
        complete(owner, &done, "done").await.unwrap();
        outside.execute("SET GLOBAL read_only = 1").await.unwrap();
        let refused = user.reserve(&fresh_key(), &fingerprint(1), &terms()).await;
        assert_kind(refused, StoreErrorKind::Other);
        assert!(user.inspect(done.key()).await.unwrap().is_some());
        outside.execute("SET GLOBAL read_only = 0").await.unwrap();
        let claimed = claim(user, &fresh_key(), &terms()).await;
        complete(user, &claimed, "done").await.unwrap();
    }
}

/// As after a failover in mid-run.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_only_reads_by_the_end_of_a_run_has_saved_nothing() {
    let Some(server) = MariaDb::start() else {
        return;
    };
    let database = Database::at(server.database().await);
    let outside = database.shop().await;
    database.lease(1).await;
    database.transaction(1).await;
    let pool = user(&database, "SELECT, INSERT, UPDATE, DELETE").await;
    let lease = LeaseStore::new(pool.clone());
    let transaction = TransactionStore::new(pool);
    let claims = [
        claim(&lease, &fresh_key(), &terms()).await,
        claim(&transaction, &fresh_key(), &terms()).await,
    ];
    outside.execute("SET GLOBAL read_only = 1").await.unwrap();
    assert_kind(
        complete(&lease, &claims[0], "done").await,
        StoreErrorKind::Other,
    );
    assert_kind(
        complete(&transaction, &claims[1], "done").await,
        StoreErrorKind::RolledBack,
    );
    outside.execute("SET GLOBAL read_only = 0").await.unwrap();
    complete(&lease, &claims[0], "done").await.unwrap();
    assert_replays(&reserve(&lease, claims[0].key()).await, "done");
    let next = claim(&transaction, claims[1].key(), &terms()).await;
    complete(&transaction, &next, "next").await.unwrap();
}

/// With this setting a lock that is waited for in vain undoes the whole transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_timeout_that_rolls_back_is_a_conflict() {
    let Some(server) = MariaDb::start_with(&["innodb-rollback-on-timeout = ON"]) else {
        return;
    };
    let database = Database::at(server.database().await);
    let outside = database.shop().await;
    let store = database
        .clone()
        .with("SET SESSION innodb_lock_wait_timeout = 1")
        .transaction(1)
        .await;
    let other = database.transaction(1).await;
    let claimed = claim(&store, &fresh_key(), &terms()).await;
    assert!(matches!(
        reserve(&other, claimed.key()).await,
        Reservation::InFlight { .. }
    ));
    let mut holder = sqlx::Acquire::begin(&outside).await.unwrap();
    run(&mut holder, "UPDATE accounts SET balance = 5 WHERE id = 1")
        .await
        .unwrap();
    let mut tx = take(&claimed);
    run(&mut tx, CHARGE).await.unwrap();
    let timed_out = run(&mut tx, "UPDATE accounts SET balance = 7 WHERE id = 1").await;
    assert_eq!(number(&timed_out.unwrap_err()), 1205);
    run(&mut tx, "INSERT INTO charges VALUES (11)")
        .await
        .unwrap();
    drop(tx);
    assert_kind(
        complete(&store, &claimed, "done").await,
        StoreErrorKind::Conflict,
    );
    holder.rollback().await.unwrap();
    assert_eq!(count(&outside, CHARGES).await, 0);
    let next = claim(&store, claimed.key(), &terms()).await;
    complete(&store, &next, "next").await.unwrap();
}

/// By its redo log, on a server where nothing else writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_writes_nothing() {
    let Some(server) = MariaDb::start() else {
        return;
    };
    let database = Database::at(server.database().await);
    let outside = database.shop().await;
    let (lease, transaction) = (database.lease(1).await, database.transaction(1).await);
    for store in [&lease as &dyn Store, &transaction] {
        let done = claim(store, &fresh_key(), &terms()).await;
        complete(store, &done, "done").await.unwrap();
        let log = "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status
                   WHERE variable_name = 'Innodb_lsn_current'";
        // The server still works on what was written before.
        until(async || {
            let before = count(&outside, log).await;
            for _ in 0..50 {
                assert_replays(&reserve(store, done.key()).await, "done");
            }
            count(&outside, log).await == before
        })
        .await;
        let before = count(&outside, log).await;
        claim(store, &fresh_key(), &terms()).await;
        assert_ne!(count(&outside, log).await, before, "a claim shows there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_free_connection_is_unavailable() {
    let Some(server) = MariaDb::start_with(&["max-connections = 10"]) else {
        return;
    };
    let database = Database::at(server.database().await);
    database.lease(1).await;
    database.transaction(1).await;
    let pool = user(&database, "SELECT, INSERT, UPDATE, DELETE").await;
    let store = LeaseStore::new(pool.clone());
    let mut taken = Vec::new();
    while let Ok(connection) = pool.acquire().await {
        taken.push(connection);
        assert!(taken.len() < 15);
    }
    let refused = store.reserve(&fresh_key(), &fingerprint(1), &terms()).await;
    assert_kind(refused, StoreErrorKind::Unavailable);
    drop(taken);
    // They come back one after the other, and until then another one is asked for.
    let (key, terms) = (fresh_key(), terms());
    until(async || {
        let claimed = store.reserve(&key, &fingerprint(1), &terms).await;
        matches!(claimed, Ok(Reservation::Acquired(_)))
    })
    .await;
}

/// Text functions that would give more than this gave NULL instead, over all notes, where the mode isn't strict.
#[tokio::test(flavor = "multi_thread")]
async fn notes_beyond_the_packet_limit_are_refused_and_cost_no_earlier_ones() {
    let Some(server) = MariaDb::start_with(&["max-allowed-packet = 64K"]) else {
        return;
    };
    let database = Database::at(server.database().await);
    for mode in ["", "STRICT_TRANS_TABLES"] {
        let store = database
            .clone()
            .with(&format!("SET SESSION sql_mode = '{mode}'"))
            .lease(1)
            .await;
        let steps = store.steps().unwrap();
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        let note = |name: &str| Note::new(name, vec![7; 40_000]);
        steps.note(&claimed, &note("first")).await.unwrap();
        let refused = steps.note(&claimed, &note("second")).await;
        assert_kind(refused, StoreErrorKind::Other);
        steps
            .note(&claimed, &Note::new("third", "3"))
            .await
            .unwrap();
        let notes = steps.notes(&claimed).await.unwrap();
        assert_eq!(notes, [note("first"), Note::new("third", "3")], "{mode:?}");
    }
}
