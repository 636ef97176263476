//! Servers and files of our own, with the stores' tables and those of the application.

use sqlx::{
    Executor, MySqlPool, PgPool,
    mysql::MySqlPoolOptions,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tempfile::TempDir;
use tower_idempotency::{mysql, postgres, sqlite};

use crate::{
    backend::{Backend, Pool},
    servers::{MariaDb, Postgres},
};

/// Of a pool.
pub(crate) const CONNECTIONS: u32 = 40;

/// What must live as long as the measurement.
#[derive(Debug)]
pub(crate) enum Place {
    Postgres(#[expect(dead_code, reason = "kept")] Postgres),
    MariaDb(#[expect(dead_code, reason = "kept")] MariaDb),
    Files(#[expect(dead_code, reason = "kept")] [TempDir; 2]),
}

/// A private Postgres server; none if there is none on this machine.
pub(crate) async fn postgres(fast: bool) -> Option<(Backend, Place)> {
    let fsync = if fast { "fsync = off" } else { "fsync = on" };
    let server = Postgres::start_with(&[fsync, "shared_buffers = 256MB", "max_wal_size = 4GB"])?;
    let pool: PgPool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .min_connections(CONNECTIONS)
        .test_before_acquire(false)
        .connect(&server.database().await)
        .await
        .expect("a pool");
    let tables = "CREATE TABLE charges (id BIGSERIAL PRIMARY KEY, amount BIGINT NOT NULL);
         CREATE TABLE plain (record_key BYTEA PRIMARY KEY, response BYTEA NOT NULL, expires BIGINT NOT NULL)";
    pool.execute(sqlx::raw_sql(tables)).await.expect("tables");
    let lease = postgres::LeaseStore::new(pool.clone());
    lease.migrate().await.expect("a table");
    let transaction = postgres::TransactionStore::new(pool.clone());
    transaction.migrate().await.expect("a table");
    let backend = Backend::new(Pool::Postgres(pool), lease, transaction).await;
    Some((backend, Place::Postgres(server)))
}

/// A private MariaDB server; none if there is none on this machine.
pub(crate) async fn mariadb(fast: bool) -> Option<(Backend, Place)> {
    let flush = if fast { "2" } else { "1" };
    let flush = format!("innodb-flush-log-at-trx-commit = {flush}");
    let method = if fast { "nosync" } else { "fsync" };
    let method = format!("innodb-flush-method = {method}");
    let room = [
        "innodb-buffer-pool-size = 256M",
        "innodb-log-file-size = 256M",
    ];
    let server = MariaDb::start_with(&[&flush, &method, room[0], room[1]])?;
    let pool: MySqlPool = MySqlPoolOptions::new()
        .max_connections(CONNECTIONS)
        .min_connections(CONNECTIONS)
        .test_before_acquire(false)
        .connect(&server.database().await)
        .await
        .expect("a pool");
    let tables = "CREATE TABLE charges (id BIGINT AUTO_INCREMENT PRIMARY KEY, amount BIGINT NOT NULL);
         CREATE TABLE plain (record_key BINARY(32) PRIMARY KEY, response LONGBLOB NOT NULL, expires BIGINT NOT NULL)";
    pool.execute(sqlx::raw_sql(tables)).await.expect("tables");
    let lease = mysql::LeaseStore::new(pool.clone());
    lease.migrate().await.expect("a table");
    let transaction = mysql::TransactionStore::new(pool.clone());
    transaction.migrate().await.expect("a table");
    let backend = Backend::new(Pool::MySql(pool), lease, transaction).await;
    Some((backend, Place::MariaDb(server)))
}

/// The stores in a file each, the application's tables in the transaction store's.
pub(crate) async fn sqlite(fast: bool) -> Option<(Backend, Place)> {
    let synchronous = if fast {
        SqliteSynchronous::Off
    } else {
        SqliteSynchronous::Full
    };
    let places = [tempfile::tempdir().ok()?, tempfile::tempdir().ok()?];
    let pool = async |place: &TempDir| {
        let options = SqliteConnectOptions::new()
            .filename(place.path().join("bench.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .busy_timeout(std::time::Duration::from_secs(60));
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .acquire_timeout(std::time::Duration::from_secs(60));
        pool.connect_with(options).await.expect("a pool")
    };
    let (shop, leases) = (pool(&places[0]).await, pool(&places[1]).await);
    let tables = "CREATE TABLE charges (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL);
         CREATE TABLE plain (record_key BLOB NOT NULL, response BLOB NOT NULL, expires INTEGER NOT NULL);
         CREATE UNIQUE INDEX plain_key ON plain (record_key)";
    shop.execute(sqlx::raw_sql(tables)).await.expect("tables");
    let lease = sqlite::LeaseStore::new(leases);
    lease.migrate().await.expect("a table");
    let transaction = sqlite::TransactionStore::new(shop.clone());
    transaction.migrate().await.expect("a table");
    let backend = Backend::new(Pool::Sqlite(shop), lease, transaction).await;
    Some((backend, Place::Files(places)))
}
