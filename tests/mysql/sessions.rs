//! The sessions of the application's pool are as they were, whatever became of a claim.

use std::collections::BTreeMap;

use sqlx::{Connection, MySqlConnection, MySqlPool};
use tower_idempotency::{
    mysql::TransactionStore,
    store::{Claim, Reservation, Store},
};

use super::database;
use crate::mysql_support::*;

/// What changes by itself.
const VOLATILE: [&str; 10] = [
    // Of new connections, in these tests.
    "time_zone",
    "timestamp",
    "rand_seed1",
    "rand_seed2",
    "error_count",
    "warning_count",
    "last_insert_id",
    "identity",
    "in_transaction",
    "pseudo_thread_id",
];

async fn variables(connection: &mut MySqlConnection) -> BTreeMap<String, String> {
    let variables: Vec<(String, String)> = sqlx::query_as("SHOW SESSION VARIABLES")
        .fetch_all(connection)
        .await
        .unwrap();
    let stable = |(name, _): &(String, String)| {
        let name = name.as_str();
        !VOLATILE.contains(&name) && !name.contains("gtid")
    };
    variables.into_iter().filter(stable).collect()
}

/// The names of those that differ.
async fn changed(
    connection: &mut MySqlConnection,
    before: &BTreeMap<String, String>,
) -> Vec<String> {
    let after = variables(connection).await;
    let differs = |(name, value): &(&String, &String)| before.get(*name) != Some(*value);
    after
        .iter()
        .filter(differs)
        .map(|(name, _)| name.clone())
        .collect()
}

struct World {
    pool: MySqlPool,
    store: TransactionStore,
    other: TransactionStore,
    outside: MySqlPool,
    before: BTreeMap<String, String>,
}

impl World {
    async fn new(database: Database) -> Self {
        let outside = database.shop().await;
        let database = database
            .with("SET SESSION innodb_lock_wait_timeout = 17, SESSION wait_timeout = 12345")
            .with("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE");
        let pool = database.pool(1).await;
        let store = TransactionStore::new(pool.clone());
        store.migrate().await.unwrap();
        let before = variables(&mut pool.acquire().await.unwrap()).await;
        assert_eq!(before["wait_timeout"], "12345");
        Self {
            other: database.transaction(1).await,
            pool,
            store,
            outside,
            before,
        }
    }

    /// The pool's one connection has no transaction, commits by itself and is as it was.
    async fn assert_clean(&self, path: &str) {
        let mut connection = self.pool.acquire().await.unwrap();
        let changed = changed(&mut connection, &self.before).await;
        assert!(changed.is_empty(), "{path}: {changed:?}");
        run(&mut connection, "INSERT INTO charges VALUES (99)")
            .await
            .unwrap();
        assert_eq!(count(&self.outside, CHARGES).await, 1, "{path}");
        let outside = sqlx::query("DELETE FROM charges")
            .execute(&self.outside)
            .await;
        assert_eq!(outside.unwrap().rows_affected(), 1);
        // sqlx believes so, too: a transaction begins with BEGIN.
        let mut transaction = connection.begin().await.unwrap();
        run(&mut transaction, "INSERT INTO charges VALUES (98)")
            .await
            .unwrap();
        assert_eq!(count(&self.outside, CHARGES).await, 0, "{path}");
        transaction.rollback().await.unwrap();
        assert_eq!(count(&self.outside, CHARGES).await, 0, "{path}");
    }

    async fn claim(&self) -> Claim {
        claim(&self.store, &fresh_key(), &terms()).await
    }
}

#[tokio::test]
async fn the_handlers_session_differs_by_what_is_documented_only() {
    let world = World::new(database!()).await;
    let claim = world.claim().await;
    let mut tx = take(&claim);
    assert_eq!(
        changed(&mut tx, &world.before).await,
        ["autocommit", "wait_timeout"]
    );
    let limit = count_on(&mut tx, "SELECT @@wait_timeout").await;
    assert_eq!(limit, 30, "the run limit");
    drop(tx);
    complete(&world.store, &claim, "done").await.unwrap();
    world.assert_clean("committed").await;
    let long = terms().with_run_limit(LEASE * 10_000);
    let claim = crate::mysql_support::claim(&world.store, &fresh_key(), &long).await;
    assert_eq!(
        changed(&mut take(&claim), &world.before).await,
        ["autocommit"],
        "not longer than it was"
    );
    world.store.release(&claim).await.unwrap();
    world.assert_clean("released").await;
}

#[tokio::test]
async fn every_end_of_a_claim_leaves_a_clean_session() {
    let world = World::new(database!()).await;
    for (path, statements) in [
        ("unused", ""),
        ("written", "INSERT INTO charges VALUES (1)"),
        ("failed", "INSERT INTO nowhere VALUES (1)"),
        ("rolled back", "ROLLBACK"),
        (
            "rolled back and gone on",
            "ROLLBACK; INSERT INTO charges VALUES (1)",
        ),
        ("committed", "COMMIT"),
        (
            "committed and begun",
            "COMMIT; START TRANSACTION; INSERT INTO charges VALUES (1)",
        ),
        ("made a table", "CREATE TABLE IF NOT EXISTS made (n INT)"),
        ("switched autocommit on", "SET autocommit = 1"),
    ] {
        for gives_up in [true, false] {
            let claim = world.claim().await;
            if !statements.is_empty() {
                let ran = sqlx::raw_sql(statements).execute(&mut *take(&claim)).await;
                assert_eq!(ran.is_err(), path == "failed");
            }
            let settled = if gives_up {
                world.store.release(&claim).await
            } else {
                complete(&world.store, &claim, "done").await
            };
            let written = sqlx::query("DELETE FROM charges")
                .execute(&world.outside)
                .await
                .unwrap();
            let commits = settled.is_ok() && !gives_up && path == "written";
            assert_eq!(
                written.rows_affected(),
                u64::from(commits),
                "{path}: {settled:?}"
            );
            world.assert_clean(path).await;
        }
    }
}

#[tokio::test]
async fn every_answer_leaves_a_clean_session() {
    let world = World::new(database!()).await;
    let done = world.claim().await;
    complete(&world.store, &done, "done").await.unwrap();
    assert_replays(&reserve(&world.store, done.key()).await, "done");
    world.assert_clean("replayed").await;
    let mismatch = world
        .store
        .reserve(done.key(), &fingerprint(2), &terms())
        .await
        .unwrap();
    assert!(matches!(mismatch, Reservation::Mismatch(_)));
    world.assert_clean("mismatched").await;
    complete(&world.store, &done, "done").await.unwrap();

    let running = claim(&world.other, &fresh_key(), &terms()).await;
    assert!(matches!(
        reserve(&world.store, running.key()).await,
        Reservation::InFlight { .. }
    ));
    world.assert_clean("in flight").await;
    let bare = Claim::new(*running.key(), fingerprint(1), terms().nonce(), 1, 1);
    complete(&world.store, &bare, "other").await.unwrap_err();
    world.assert_clean("busy").await;
    world.other.release(&running).await.unwrap();
    complete(&world.store, &bare, "other").await.unwrap_err();
    world.assert_clean("verified").await;

    let old = world.claim().await;
    world
        .store
        .complete(&old, &response("old"), INSTANT)
        .await
        .unwrap();
    until(|| async { world.store.inspect(old.key()).await.unwrap().is_none() }).await;
    let new = claim(&world.store, old.key(), &terms()).await;
    complete(&world.store, &new, "new").await.unwrap();
    world.assert_clean("over an expired record").await;
}

#[tokio::test]
async fn a_deadlock_leaves_clean_sessions() {
    let world = World::new(database!()).await;
    for gives_up in [true, false] {
        let claims = [
            world.claim().await,
            claim(&world.other, &fresh_key(), &terms()).await,
        ];
        let [mut one, mut other] = claims.each_ref().map(take);
        deadlock(&mut one, &mut other).await;
        drop((one, other));
        for (store, claim) in [&world.store, &world.other].into_iter().zip(&claims) {
            // One of them is the victim.
            let settled = if gives_up {
                store.release(claim).await
            } else {
                complete(store, claim, "done").await
            };
            drop(settled);
        }
        world.assert_clean("deadlocked").await;
    }
}

/// A transaction that somebody has left open in the pool isn't the handler's.
#[tokio::test]
async fn a_transaction_that_was_left_in_the_pool_does_not_become_the_handlers() {
    let world = World::new(database!()).await;
    run(
        &mut world.pool.acquire().await.unwrap(),
        "START TRANSACTION",
    )
    .await
    .unwrap();
    run(
        &mut world.pool.acquire().await.unwrap(),
        "INSERT INTO charges VALUES (1)",
    )
    .await
    .unwrap();
    let claim = world.claim().await;
    assert_eq!(
        count(&world.outside, CHARGES).await,
        1,
        "committed, as sqlx's own BEGIN does"
    );
    world.store.release(&claim).await.unwrap();
    assert_eq!(count(&world.outside, CHARGES).await, 1);
    sqlx::query("DELETE FROM charges")
        .execute(&world.outside)
        .await
        .unwrap();
    world.assert_clean("released").await;
}
