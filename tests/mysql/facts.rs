//! What the stores rest on: how sqlx 0.9, MySQL and MariaDB behave. One of these failing means that a store must be looked at again.

use std::collections::BTreeSet;

use sqlx::{Executor, MySqlConnection, MySqlPool, Row};

use super::database;
use crate::mysql_support::*;

async fn scripted(
    connection: &mut MySqlConnection,
    sql: &'static str,
) -> Result<Vec<sqlx::mysql::MySqlRow>, sqlx::Error> {
    sqlx::raw_sql(sql).fetch_all(connection).await
}

/// Other servers lack what such a fact is about.
async fn is_mariadb(pool: &MySqlPool) -> bool {
    let version = "SELECT VERSION() LIKE '%MariaDB%'";
    count(pool, version).await == 1
}

#[tokio::test]
async fn after_a_deadlock_the_session_writes_on_as_if_nothing_had_happened() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(2).await;
    for autocommit in [true, false] {
        let (mut one, mut other) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
        for connection in [&mut one, &mut other] {
            let sql = if autocommit {
                "SET autocommit = 1"
            } else {
                "SET autocommit = 0"
            };
            run(connection, sql).await.unwrap();
            scripted(connection, "START TRANSACTION; SAVEPOINT here")
                .await
                .unwrap();
        }
        let (victim, mut winner) = if deadlock(&mut one, &mut other).await {
            (&mut one, other)
        } else {
            (&mut other, one)
        };
        run(&mut winner, "ROLLBACK").await.unwrap();
        run(victim, CHARGE).await.unwrap();
        let released = run(victim, "RELEASE SAVEPOINT here").await.unwrap_err();
        assert_eq!(
            number(&released),
            1305,
            "the savepoint went with the transaction"
        );
        assert_eq!(count(&outside, CHARGES).await, i64::from(autocommit));
        scripted(victim, "ROLLBACK; SET autocommit = 1")
            .await
            .unwrap();
        scripted(&mut winner, "SET autocommit = 1").await.unwrap();
        assert_eq!(count(&outside, CHARGES).await, i64::from(autocommit));
        sqlx::query("DELETE FROM charges")
            .execute(&outside)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_statement_that_commits_takes_the_savepoint_with_it() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(1).await;
    for statement in [
        "CREATE TABLE made (n INT)",
        "COMMIT",
        "START TRANSACTION",
        "SET autocommit = 1",
    ] {
        let mut connection = pool.acquire().await.unwrap();
        let begun = "SET autocommit = 0; START TRANSACTION; SAVEPOINT here; INSERT INTO charges VALUES (10)";
        scripted(&mut connection, begun).await.unwrap();
        run(&mut connection, statement).await.unwrap();
        assert_eq!(count(&outside, CHARGES).await, 1, "{statement} commits");
        let released = run(&mut connection, "RELEASE SAVEPOINT here")
            .await
            .unwrap_err();
        assert_eq!(number(&released), 1305);
        scripted(&mut connection, "ROLLBACK; SET autocommit = 1")
            .await
            .unwrap();
        sqlx::query("DELETE FROM charges")
            .execute(&outside)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn of_several_statements_those_after_one_that_failed_are_not_executed() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(1).await;
    let mut connection = pool.acquire().await.unwrap();
    let sql =
        "INSERT INTO charges VALUES (1); RELEASE SAVEPOINT nowhere; INSERT INTO charges VALUES (2)";
    let error = scripted(&mut connection, sql).await.unwrap_err();
    assert_eq!(number(&error), 1305);
    assert_eq!(count(&outside, "SELECT sum(amount) FROM charges").await, 1);
    // And the connection is in order.
    let rows = scripted(&mut connection, "SELECT 1; SET @x = 2; SELECT @x")
        .await
        .unwrap();
    let numbers: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test]
async fn a_savepoint_may_begin_a_transaction_as_far_as_sqlx_is_concerned() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(1).await;
    let mut connection = pool.acquire().await.unwrap();
    scripted(
        &mut connection,
        "SET autocommit = 0; START TRANSACTION; INSERT INTO charges VALUES (1)",
    )
    .await
    .unwrap();
    let transaction = sqlx::Connection::begin_with(&mut *connection, "SAVEPOINT here")
        .await
        .unwrap();
    // Its rollback finds nothing to undo.
    std::mem::forget(transaction);
    scripted(
        &mut connection,
        "RELEASE SAVEPOINT here; COMMIT; SET autocommit = 1",
    )
    .await
    .unwrap();
    drop(connection);
    run(
        &mut pool.acquire().await.unwrap(),
        "INSERT INTO charges VALUES (2)",
    )
    .await
    .unwrap();
    assert_eq!(count(&outside, CHARGES).await, 2);
}

#[tokio::test]
async fn a_lock_that_is_waited_for_in_vain_undoes_the_statement_only() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(2).await;
    let (mut holder, mut waiter) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    scripted(
        &mut holder,
        "START TRANSACTION; UPDATE accounts SET balance = 1 WHERE id = 1",
    )
    .await
    .unwrap();
    scripted(&mut waiter, "SET SESSION innodb_lock_wait_timeout = 1; START TRANSACTION; INSERT INTO charges VALUES (10)")
        .await
        .unwrap();
    let timed_out = run(&mut waiter, "UPDATE accounts SET balance = 2 WHERE id = 1")
        .await
        .unwrap_err();
    assert_eq!(number(&timed_out), 1205);
    run(&mut waiter, "COMMIT").await.unwrap();
    assert_eq!(
        count(&outside, CHARGES).await,
        1,
        "the write before it survives"
    );
    run(&mut holder, "ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn one_statement_can_be_kept_from_waiting_and_the_session_stays_as_it_is() {
    let database = database!();
    let pool = database.pool(2).await;
    if !is_mariadb(&pool).await {
        return;
    }
    let outside = database.shop().await;
    let (mut holder, mut other) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    scripted(
        &mut holder,
        "START TRANSACTION; INSERT INTO charges VALUES (10)",
    )
    .await
    .unwrap();
    let wait = "SELECT @@SESSION.innodb_lock_wait_timeout";
    let before = count_on(&mut other, wait).await;
    assert_ne!(before, 0);
    let refused = run(
        &mut other,
        "SET STATEMENT innodb_lock_wait_timeout = 0 FOR INSERT INTO charges VALUES (10)",
    );
    assert_eq!(number(&refused.await.unwrap_err()), 1205);
    let after = count_on(&mut other, wait).await;
    assert_eq!(before, after);
    run(&mut holder, "COMMIT").await.unwrap();
    let exists = run(&mut other, CHARGE).await.unwrap_err();
    assert_eq!(number(&exists), 1062);
    drop(outside);
}

/// That a waiter's statement has begun is seen, and not that it waits for the lock yet: so it may take more than one round.
#[tokio::test]
async fn waiters_for_a_row_that_is_rolled_back_deadlock() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(5).await;
    until(|| async {
        run(&mut outside.acquire().await.unwrap(), "DELETE FROM charges")
            .await
            .unwrap();
        errors_of_waiters(&pool, &outside).await.contains(&1213)
    })
    .await;
}

async fn errors_of_waiters(pool: &MySqlPool, outside: &MySqlPool) -> BTreeSet<u16> {
    let mut holder = pool.acquire().await.unwrap();
    scripted(
        &mut holder,
        "START TRANSACTION; INSERT INTO charges VALUES (10)",
    )
    .await
    .unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let mut waiter = pool.acquire().await.unwrap();
        waiters.spawn(async move { run(&mut waiter, CHARGE).await });
    }
    let waiting = "SELECT count(*) FROM information_schema.processlist
                   WHERE db = DATABASE() AND info LIKE 'INSERT INTO charges%'";
    until(|| async { count(outside, waiting).await == 4 }).await;
    run(&mut holder, "ROLLBACK").await.unwrap();
    waiters
        .join_all()
        .await
        .into_iter()
        .filter_map(|inserted| inserted.err().map(|error| number(&error)))
        .collect()
}

#[tokio::test]
async fn locking_a_missing_row_first_and_inserting_it_then_deadlocks() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(2).await;
    let (mut one, mut other) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    for connection in [&mut one, &mut other] {
        scripted(
            connection,
            "START TRANSACTION; SELECT * FROM charges WHERE amount = 10 FOR UPDATE",
        )
        .await
        .unwrap();
    }
    let both = tokio::join!(
        run(&mut one, CHARGE),
        run(&mut other, "INSERT INTO charges VALUES (11)")
    );
    let failed = [both.0, both.1]
        .into_iter()
        .filter_map(Result::err)
        .collect::<Vec<_>>();
    assert_eq!(
        failed.iter().map(number).collect::<Vec<_>>(),
        [1213],
        "two different keys"
    );
    drop(outside);
}

#[tokio::test]
async fn what_another_committed_meanwhile_is_seen_in_a_new_transaction_only() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(1).await;
    let mut connection = pool.acquire().await.unwrap();
    // MariaDB from 11.6.2 on would refuse to look at it: see below.
    scripted(
        &mut connection,
        "SET @ignored = 0 /*M!101108 , SESSION innodb_snapshot_isolation = OFF */;
         SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION; SELECT count(*) FROM charges",
    )
    .await
    .unwrap();
    sqlx::query(CHARGE).execute(&outside).await.unwrap();
    assert_eq!(
        number(&run(&mut connection, CHARGE).await.unwrap_err()),
        1062
    );
    let seen: i64 = sqlx::query_scalar(CHARGES)
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    assert_eq!(
        seen, 0,
        "the row that was in the way is not in the snapshot"
    );
    run(&mut connection, "ROLLBACK").await.unwrap();
    let seen: i64 = sqlx::query_scalar(CHARGES)
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    assert_eq!(seen, 1);
}

#[tokio::test]
async fn affected_rows_tell_nothing_of_an_upsert_and_count_what_an_update_found() {
    let database = database!();
    let outside = database.shop().await;
    let upsert = "INSERT INTO charges VALUES (10) ON DUPLICATE KEY UPDATE amount = amount";
    for _ in 0..2 {
        let upserted = sqlx::query(upsert).execute(&outside).await.unwrap();
        assert_eq!(upserted.rows_affected(), 1, "inserted or not");
    }
    for (sql, found) in [
        ("UPDATE charges SET amount = 10 WHERE amount = 10", 1),
        ("UPDATE charges SET amount = 11 WHERE amount = 12", 0),
    ] {
        let updated = sqlx::query(sql).execute(&outside).await.unwrap();
        assert_eq!(
            updated.rows_affected(),
            found,
            "also what was the same before"
        );
    }
    let told =
        "UPDATE charges SET amount = LAST_INSERT_ID(GREATEST(amount + 1, 7)) WHERE amount = 10";
    let updated = sqlx::query(told).execute(&outside).await.unwrap();
    assert_eq!(updated.last_insert_id(), 11);
}

#[tokio::test]
async fn the_clock_is_the_same_in_every_time_zone_and_stands_still_within_a_statement() {
    let database = database!();
    let pool = database.pool(1).await;
    let mut connection = pool.acquire().await.unwrap();
    let clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    let sql = format!(
        "SET time_zone = '-05:00'; SELECT {clock}; SET time_zone = '+13:00'; SELECT {clock};
         SET time_zone = '+00:00'; SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED);
         SELECT {clock} - {clock} + SLEEP(0.05)"
    );
    let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .fetch_all(&mut *connection)
        .await
        .unwrap();
    let times: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert!(times[0] <= times[1] && times[1] <= times[2], "{times:?}");
    assert!(times[2] - times[0] < 60_000_000, "{times:?}");
    assert_eq!(times[3], 0);
}

#[tokio::test]
async fn fixed_length_bytes_are_compared_to_the_last() {
    let database = database!();
    let outside = database.shop().await;
    sqlx::raw_sql("CREATE TABLE bytes (k BINARY(2) PRIMARY KEY); INSERT INTO bytes VALUES ('a '), ('a\\0'), ('A ')")
        .execute(&outside)
        .await
        .unwrap();
    let kept: Vec<Vec<u8>> = sqlx::query_scalar("SELECT k FROM bytes ORDER BY k")
        .fetch_all(&outside)
        .await
        .unwrap();
    assert_eq!(kept, [b"A ", b"a\0", b"a "]);
}

#[tokio::test]
async fn a_one_time_isolation_level_ends_with_the_next_statement() {
    let database = database!();
    let outside = database.shop().await;
    let pool = database.pool(2).await;
    let (mut writer, mut reader) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    scripted(
        &mut writer,
        "START TRANSACTION; INSERT INTO charges VALUES (10)",
    )
    .await
    .unwrap();
    let sql = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; SELECT count(*) FROM charges; SELECT count(*) FROM charges";
    let rows = scripted(&mut reader, sql).await.unwrap();
    let seen: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, [1, 0]);
    run(&mut writer, "ROLLBACK").await.unwrap();
    drop(outside);
}

#[tokio::test]
async fn a_write_over_a_row_that_is_newer_than_an_isolated_snapshot_undoes_the_transaction() {
    let Some(database) = database!().with_isolated_snapshots().await else {
        return;
    };
    let outside = database.shop().await;
    let mut connection = database.pool(1).await.acquire().await.unwrap();
    outside.execute(CHARGE).await.unwrap();
    for write in [
        CHARGE,
        "INSERT IGNORE INTO charges VALUES (10)",
        "INSERT INTO charges VALUES (10) ON DUPLICATE KEY UPDATE amount = 10",
        "UPDATE charges SET amount = 12 WHERE amount = 10",
        "DELETE FROM charges WHERE amount = 10",
        "SELECT * FROM charges WHERE amount = 10 LOCK IN SHARE MODE",
    ] {
        scripted(
            &mut connection,
            "SET autocommit = 0; START TRANSACTION; INSERT INTO charges VALUES (1); SAVEPOINT here; SELECT * FROM accounts",
        )
        .await
        .unwrap();
        let newer = "DELETE FROM charges WHERE amount = 10; INSERT INTO charges VALUES (10)";
        outside.execute(sqlx::raw_sql(newer)).await.unwrap();
        let refused = run(&mut connection, write).await;
        assert_eq!(number(&refused.unwrap_err()), 1020, "{write}");
        let gone = run(&mut connection, "RELEASE SAVEPOINT here").await;
        assert_eq!(number(&gone.unwrap_err()), 1305, "{write}");
        run(&mut connection, "COMMIT").await.unwrap();
        assert_eq!(count(&outside, CHARGES).await, 1, "{write}");
    }
}

#[tokio::test]
async fn a_write_without_a_read_before_it_meets_no_newer_row() {
    let Some(database) = database!().with_isolated_snapshots().await else {
        return;
    };
    let outside = database.shop().await;
    let mut connection = database.pool(1).await.acquire().await.unwrap();
    scripted(
        &mut connection,
        "START TRANSACTION; INSERT INTO charges VALUES (1)",
    )
    .await
    .unwrap();
    outside.execute(CHARGE).await.unwrap();
    let write = "UPDATE charges SET amount = 12 WHERE amount = 10";
    run(&mut connection, write).await.unwrap();
    run(&mut connection, "COMMIT").await.unwrap();
    assert_eq!(count(&outside, "SELECT sum(amount) FROM charges").await, 13);
}
