//! What no fault was injected for passes, and is counted.

use sqlx::{Connection as _, Error, Executor};

use super::{Connection, database, world::World};
use crate::servers::Proxy;

#[tokio::test]
async fn statements_and_round_trips_are_counted() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let start = world.proxy.round_trips();
    let sql = "INSERT INTO t VALUES (1)";
    world.insert(sql).await.expect("a row");
    // Begin, prepare, execute, commit.
    assert_eq!(world.proxy.round_trips() - start, 4);
    sqlx::query("DELETE FROM t")
        .persistent(false)
        .execute(&world.pool)
        .await
        .expect("no row");
    assert_eq!(world.proxy.round_trips() - start, 6);
    world.insert(sql).await.expect("a row");
    // Begin, execute, commit.
    assert_eq!(world.proxy.round_trips() - start, 9);

    assert_eq!(world.rows().await, [1]);
    assert_eq!(world.proxy.count("INSERT INTO t"), 2);
    assert_eq!(world.proxy.count("INSERT INTO other"), 0);
    let statements = world.proxy.statements();
    let statements: Vec<&str> = statements.iter().map(AsRef::as_ref).collect();
    let transaction = ["BEGIN", sql, "COMMIT"];
    let expected = [&transaction[..], &["DELETE FROM t"], &transaction].concat();
    assert!(statements.ends_with(&expected), "{statements:?}");
}

#[tokio::test]
async fn an_error_passes_and_the_connection_goes_on() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let first = world.insert("INSERT INTO t VALUES (1)").await;
    first.expect("a row");
    for sql in ["INSERT INTO t VALUES (1)", "INSERT INTO nowhere VALUES (1)"] {
        let refused = world.insert(sql).await.expect_err("refused");
        assert!(matches!(refused, Error::Database(_)), "{refused}");
    }
    let next = world.insert("INSERT INTO t VALUES (2)").await;
    next.expect("a row");
    assert_eq!(world.rows().await, [1, 2]);
}

#[tokio::test]
async fn several_results_and_many_large_rows_pass() {
    let Some(url) = database().await else {
        return;
    };
    let proxy = Proxy::start(&url);
    let connection = Connection::connect(proxy.url()).await;
    let mut connection = connection.expect("a connection");
    let start = proxy.round_trips();
    let several = connection
        .fetch_all("SELECT 1; SELECT 2, 3; SELECT 4")
        .await;
    assert_eq!(several.expect("rows").len(), 3);
    assert_eq!(proxy.round_trips() - start, 1);

    // A row of more than 16 MiB is more than one packet of MySQL.
    let sql = "SELECT repeat('x', 9000000), repeat('y', 9000000), repeat('z', 9000000) UNION ALL SELECT 'a', 'b', 'c'";
    let rows: Vec<(String, String, String)> = sqlx::query_as(sql)
        .fetch_all(&mut connection)
        .await
        .expect("rows");
    let lengths: Vec<_> = rows
        .iter()
        .map(|row| row.0.len() + row.1.len() + row.2.len())
        .collect();
    assert_eq!(lengths, [27_000_000, 3]);
    // Prepare and execute.
    assert_eq!(proxy.round_trips() - start, 3);
}
