//! What a server does while the test lives.

use std::{io::ErrorKind, time::Duration};

use sqlx::{Connection as _, Error};
use tokio::{runtime::Runtime, time::timeout};

use super::{Connection, Private, READ_SETTING, SETTING, shared};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);
/// A server that runs has answered long before.
const SILENCE: Duration = Duration::from_millis(200);

#[tokio::test]
async fn each_test_has_a_database_of_its_own() {
    let Some(server) = shared() else {
        return;
    };
    for _ in 0..2 {
        let url = server.database().await;
        let mut connection = connect(&url).await.expect("a connection");
        run(&mut connection, "CREATE TABLE t (n int)").await;
        connection.close().await.expect("a closed connection");
    }
}

#[test]
fn tests_with_runtimes_of_their_own_share_a_server() {
    let use_it = || {
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let server = shared()?;
            let mut connection = connect(&server.database().await).await.ok()?;
            connection.ping().await.ok()?;
            Some(server.url())
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(use_it)).collect();
        let urls = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        let mut urls: Vec<_> = urls.collect();
        urls.dedup();
        assert_eq!(urls, [shared().map(|server| server.url())]);
    });
}

#[tokio::test]
async fn a_frozen_server_answers_when_it_is_thawed() {
    let Some(server) = Private::start() else {
        return;
    };
    let mut open = connect(server.url()).await.expect("a connection");
    for _ in 0..2 {
        server.freeze();
        let mut query = Box::pin(open.ping());
        let mut new = Box::pin(connect(server.url()));
        timeout(SILENCE, &mut query).await.expect_err("no answer");
        timeout(SILENCE, &mut new).await.expect_err("no answer");
        server.thaw();
        timeout(LIMIT, query)
            .await
            .expect("in time")
            .expect("an answer");
        timeout(LIMIT, new)
            .await
            .expect("in time")
            .expect("a connection");
    }
}

#[tokio::test]
async fn a_server_that_was_killed_restarts_with_what_was_committed() {
    let Some(server) = Private::start() else {
        return;
    };
    let url = server.database().await;
    let mut open = connect(&url).await.expect("a connection");
    run(&mut open, "CREATE TABLE t (n int)").await;
    for round in 0..3 {
        run(&mut open, "INSERT INTO t VALUES (1)").await;
        let mut tx = open.begin().await.expect("a transaction");
        run(&mut tx, "INSERT INTO t VALUES (2)").await;
        if round == 1 {
            server.freeze();
        }
        server.kill();
        let lost = tx.commit().await.expect_err("no server");
        assert!(matches!(lost, Error::Io(_)), "{lost}");
        let Err(Error::Io(refused)) = connect(&url).await else {
            panic!("somebody listens");
        };
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

        server.restart();
        open = connect(&url).await.expect("a connection");
        let rows = sqlx::query_scalar("SELECT n FROM t")
            .fetch_all(&mut open)
            .await;
        let rows: Vec<i32> = rows.expect("rows");
        assert_eq!(rows, vec![1; round + 1]);
    }
}

#[tokio::test]
async fn a_private_server_has_the_settings_that_it_is_given() {
    let Some(server) = Private::start_with(&[SETTING]) else {
        return;
    };
    let mut connection = connect(server.url()).await.expect("a connection");
    let setting = sqlx::query_scalar(READ_SETTING).fetch_one(&mut connection);
    let setting: i64 = setting.await.expect("a setting");
    assert_eq!(setting, 17);
}

#[test]
fn a_private_server_is_gone_when_it_was_dropped() {
    let frozen = |server: &Private| server.freeze();
    let killed = |server: &Private| server.kill();
    let fates: [fn(&Private); 3] = [|_| {}, frozen, killed];
    for fate in fates {
        let Some(server) = Private::start() else {
            return;
        };
        let (directory, port) = (server.directory().to_owned(), server.port());
        fate(&server);
        assert!(directory.exists());
        drop(server);
        assert!(!directory.exists());
        std::net::TcpStream::connect(("127.0.0.1", port)).expect_err("nobody listens");
    }
}

async fn connect(url: &str) -> Result<Connection, Error> {
    Connection::connect(url).await
}

async fn run(connection: &mut Connection, sql: &'static str) {
    let done = sqlx::query(sql).execute(connection).await;
    done.expect("a statement");
}
