//! PgBouncer.

use std::{collections::HashSet, time::Duration};

use sqlx::{Connection, PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::servers::{Fault, PgBouncer, Postgres, Proxy};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn clients_share_its_connections_by_transaction() {
    let Some((server, bouncer)) = start(2) else {
        return;
    };
    let database = server.database().await;
    let pool = PgPoolOptions::new().max_connections(8).min_connections(8);
    let pool = pool.connect(&bouncer.through(&database)).await;
    let pool = pool.expect("a pool");
    let mut serve = HashSet::new();
    for _ in 0..10 {
        let transactions = [(); 4].map(|()| two_statements(&pool));
        let [a, b, c, d] = transactions;
        for (first, second) in <[_; 4]>::from(tokio::join!(a, b, c, d)) {
            assert_eq!(first, second, "not within a transaction");
            serve.insert(first);
        }
    }
    assert!(serve.len() <= 2, "{serve:?}");
}

/// A fact about PgBouncer and sqlx, which prepares in one round trip and executes in the next: who wants to work through
/// such a PgBouncer prepares nothing outside of a transaction.
#[tokio::test]
async fn outside_of_a_transaction_it_may_execute_what_another_client_prepared() {
    let Some((_server, bouncer)) = start(1) else {
        return;
    };
    let proxy = Proxy::start(bouncer.url());
    let (mut one, mut two) = (connect(proxy.url()).await, connect(bouncer.url()).await);

    let strikes = proxy.inject(Fault::Hang.on("SELECT 'one'"));
    let first = tokio::spawn(async move { text(&mut one, "SELECT 'one'").await });
    strikes.struck(1).await;
    assert_eq!(text(&mut two, "SELECT 'two'").await, "two");
    proxy.resume();
    assert_eq!(first.await.expect("no panic"), "two");
}

/// Another fact: without its cache of statements sqlx gives them names all the same. A newer PgBouncer gives them others.
#[tokio::test]
async fn a_pool_without_a_statement_cache_still_prepares_by_name() {
    let Some((_server, bouncer)) = start(1) else {
        return;
    };
    let url = format!("{}?statement-cache-capacity=0", bouncer.url());
    let (mut one, mut two) = (connect(&url).await, connect(&url).await);
    let query = || sqlx::query("SELECT 1");
    query().execute(&mut one).await.expect("a name of its own");
    let second = query().execute(&mut two).await;
    if bouncer.renames_statements().await {
        second.expect("another name");
        return;
    }
    let taken = second.expect_err("the same name");
    let code = taken.as_database_error().and_then(|error| error.code());
    assert_eq!(code.as_deref(), Some("42P05"), "{taken}");
}

#[tokio::test]
async fn it_serves_again_after_a_restart_of_the_server() {
    let Some((server, bouncer)) = start(2) else {
        return;
    };
    let mut before = connect(bouncer.url()).await;
    before.ping().await.expect("an answer");
    server.kill();
    server.restart();
    let start = Instant::now();
    let mut pause = interval(Duration::from_millis(20));
    pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        pause.tick().await;
        let again = async {
            sqlx::raw_sql("SELECT 1")
                .execute(&mut PgConnection::connect(bouncer.url()).await?)
                .await
        };
        if again.await.is_ok() {
            return;
        }
        assert!(start.elapsed() < LIMIT, "it serves no more");
    }
}

fn start(connections: u32) -> Option<(Postgres, PgBouncer)> {
    let server = Postgres::start()?;
    let bouncer = PgBouncer::start(&server, connections)?;
    Some((server, bouncer))
}

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.expect("a connection")
}

/// The processes of the server that serve two statements of one transaction.
async fn two_statements(pool: &PgPool) -> (i32, i32) {
    let mut tx = pool.begin().await.expect("a transaction");
    let processes = (process(&mut tx).await, process(&mut tx).await);
    tx.commit().await.expect("committed");
    processes
}

async fn process(connection: &mut PgConnection) -> i32 {
    // Without a name: another transaction's connection may know another statement by it.
    let process = sqlx::query_scalar("SELECT pg_backend_pid()").persistent(false);
    process.fetch_one(connection).await.expect("a number")
}

async fn text(connection: &mut PgConnection, sql: &'static str) -> String {
    let text = sqlx::query_scalar(sql).persistent(false);
    text.fetch_one(connection).await.expect("a text")
}
