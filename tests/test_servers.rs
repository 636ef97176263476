//! The servers and the proxy that other tests rest on do what those tests believe.
#![cfg(unix)]

mod servers;

use servers::{MariaDb, Postgres};
use sqlx::{Connection, MySqlConnection, PgConnection};

#[tokio::test]
async fn postgres_serves_a_database_per_test() {
    let Some(postgres) = servers::postgres() else {
        return;
    };
    let (one, other) = (postgres.database().await, postgres.database().await);
    let mut one = PgConnection::connect(&one).await.expect("a connection");
    let mut other = PgConnection::connect(&other).await.expect("a connection");
    for connection in [&mut one, &mut other] {
        sqlx::query("CREATE TABLE t (n int)")
            .execute(connection)
            .await
            .expect("no such table");
    }
}

#[tokio::test]
async fn mariadb_serves_a_database_per_test() {
    let Some(mariadb) = servers::mariadb() else {
        return;
    };
    let (one, other) = (mariadb.database().await, mariadb.database().await);
    let mut one = MySqlConnection::connect(&one).await.expect("a connection");
    let mut other = MySqlConnection::connect(&other)
        .await
        .expect("a connection");
    for connection in [&mut one, &mut other] {
        sqlx::query("CREATE TABLE t (n int)")
            .execute(connection)
            .await
            .expect("no such table");
    }
}

#[test]
fn a_server_that_was_killed_restarts() {
    let Some(postgres) = Postgres::start() else {
        return;
    };
    postgres.kill();
    postgres.restart();
    let Some(mariadb) = MariaDb::start() else {
        return;
    };
    mariadb.kill();
    mariadb.restart();
}
