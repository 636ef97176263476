//! `kill -9` at random moments while clients charge and retry: each key is charged once, and answered once and for all.
//!
//! `KILLS=200 cargo test --features axum,sqlite --test kill -- --nocapture` makes a long run of it and tells the numbers,
//! after `cargo build --features axum,sqlite --example payments`.
#![cfg(unix)]

mod server;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use server::{Answer, Caller, Database, Server, fresh_key};
use sqlx::Connection;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, interval_at},
};
use uuid::Uuid;

const CLIENTS: usize = 6;
/// The longest that a server lives, in microseconds.
const LIFE: u128 = 150_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_charged_once_however_often_the_server_is_killed() {
    let kills = std::env::var("KILLS").map_or(10, |kills| kills.parse().expect("a number"));
    let database = Database::new();
    let mut server = Server::start(&database.file()).await;
    let (address, addresses) = watch::channel(server.address);
    let load = Arc::new(Load::default());
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            tokio::spawn(client(
                Arc::clone(&over),
                Arc::clone(&load),
                addresses.clone(),
            ))
        })
        .collect();

    for _ in 0..kills {
        random_moment().await;
        server.kill().await;
        server = Server::start(&database.file()).await;
        address.send_replace(server.address);
    }
    over.store(true, Ordering::Relaxed);
    let mut charges = Vec::new();
    for client in clients {
        charges.extend(client.await.expect("a client that finished"));
    }

    println!("{kills} kills, {} keys, {load:?}", charges.len());
    assert_ne!(
        load.broken.load(Ordering::Relaxed),
        0,
        "no request met a kill"
    );
    assert_charged_once(&database, &charges).await;
}

/// What the clients met.
#[derive(Debug, Default)]
struct Load {
    requests: AtomicUsize,
    /// No answer came, or only a part of it.
    broken: AtomicUsize,
    /// 409 or 503.
    asked_to_retry: AtomicUsize,
    replays: AtomicUsize,
    /// Keys whose charge was committed and whose answer a kill had taken: all that the client ever got are replays.
    answers_lost: AtomicUsize,
}

/// A key that was charged, and its answer.
struct Charged {
    key: String,
    amount: u32,
    answer: Answer,
}

/// Charges under one key after the other until the load is over, each to its end.
async fn client(
    over: Arc<AtomicBool>,
    load: Arc<Load>,
    addresses: watch::Receiver<SocketAddr>,
) -> Vec<Charged> {
    let mut charges = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let key = fresh_key();
        let amount = 1 + u32::try_from(random(1_000_000)).expect("a small number");
        // Two senders of one request, as with a proxy that retries by itself; and a retry that comes after all is done.
        let (answer, other) = tokio::join!(
            until_answered(&load, &addresses, &key, amount),
            until_answered(&load, &addresses, &key, amount),
        );
        let late = until_answered(&load, &addresses, &key, amount).await;
        assert_eq!(answer.lasting(), other.lasting(), "{key}");
        assert_eq!(answer.lasting(), late.lasting(), "{key}");
        assert!(late.is_replay(), "{key}");
        assert!(answer.is_replay() || other.is_replay(), "{key} ran twice");
        let lost = answer.is_replay() && other.is_replay();
        load.answers_lost
            .fetch_add(usize::from(lost), Ordering::Relaxed);
        charges.push(Charged {
            key,
            amount,
            answer,
        });
    }
    charges
}

/// Retries with the same key until the answer is final: not 409 or 503, and no broken connection.
async fn until_answered(
    load: &Load,
    addresses: &watch::Receiver<SocketAddr>,
    key: &str,
    amount: u32,
) -> Answer {
    let order = format!(r#"{{"amount":{amount},"currency":"eur","card":"tok_visa"}}"#);
    let mut pause = interval(Duration::from_millis(5));
    pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        pause.tick().await;
        let caller = Caller::new(*addresses.borrow());
        load.requests.fetch_add(1, Ordering::Relaxed);
        let Some(answer) = caller
            .try_send(caller.keyed("/charges", "alice", key, &order))
            .await
        else {
            load.broken.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        if [StatusCode::CONFLICT, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status) {
            load.asked_to_retry.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        load.replays
            .fetch_add(usize::from(answer.is_replay()), Ordering::Relaxed);
        return answer;
    }
}

/// Compares what the clients were told with what a connection of the test's own reads.
async fn assert_charged_once(database: &Database, charges: &[Charged]) {
    let mut connection = database.connect().await;
    for Charged {
        key,
        amount,
        answer,
    } in charges
    {
        let rows: Vec<(String, u32)> =
            sqlx::query_as("SELECT id, amount FROM charges WHERE idempotency_key = ?")
                .bind(key)
                .fetch_all(&mut connection)
                .await
                .expect("rows");
        assert_eq!(answer.status, StatusCode::CREATED, "{key}");
        assert_eq!(rows, [(answer.id(), *amount)], "{key}");
    }
    let count = async |connection: &mut _, sql: &'static str| -> usize {
        let number: i64 = sqlx::query_scalar(sql)
            .fetch_one(connection)
            .await
            .expect("a number");
        usize::try_from(number).expect("a count")
    };
    let rows = count(&mut connection, "SELECT count(*) FROM charges").await;
    assert_eq!(rows, charges.len(), "charges under keys that nobody sent");
    let records = count(
        &mut connection,
        "SELECT count(*) FROM tower_idempotency_transactions",
    )
    .await;
    assert_eq!(records, charges.len(), "records and charges differ");
    connection.close().await.expect("a closed connection");
}

/// The moment of a kill. Nothing is waited for: it may fall anywhere, also before the server's first request.
async fn random_moment() {
    let micros = u64::try_from(random(LIFE)).expect("a short time");
    let moment = Instant::now() + Duration::from_micros(micros);
    interval_at(moment, Duration::from_secs(1)).tick().await;
}

fn random(below: u128) -> u128 {
    Uuid::new_v4().as_u128() % below
}
