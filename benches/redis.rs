//! What the Redis store costs on a real server, as ratios to `PING` on a connection of the same kind.
//!
//! `cargo bench --features redis --bench redis`. One caller, whose operations take turns (lower quartiles of their times), and 32
//! callers at once, in slices that take turns (medians of their throughputs). The server is private and on loopback, without
//! persistence.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a bench fails by panicking"
)]

#[path = "../tests/servers/mod.rs"]
mod servers;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use redis::{Client, aio::MultiplexedConnection};
use tokio::task::JoinSet;
use tower_idempotency::{
    Fingerprint, RecordKey, RedisStore, SavedResponse, Tag,
    store::{Claim, Nonce, Reservation, Store, Terms},
};

const TURNS: usize = 4_000;
const CALLERS: usize = 32;
const SLICES: usize = 11;
const SLICE: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug)]
enum Operation {
    Ping,
    /// `SET … NX GET PX` of a new key: the least that a claim could cost.
    Set,
    Reserve,
    Complete,
    /// Both of these.
    Cycle,
    Replay,
}

const ALL: [Operation; 6] = [
    Operation::Ping,
    Operation::Set,
    Operation::Reserve,
    Operation::Complete,
    Operation::Cycle,
    Operation::Replay,
];
/// What a ratio to `PING` is to reach.
const REACH: [&str; 6] = ["", "", "1.2", "", "2.5", "1.2"];

struct Bench {
    plain: MultiplexedConnection,
    store: RedisStore,
    done: RecordKey,
}

impl Bench {
    async fn prepare(&self, operation: Operation) -> Option<Claim> {
        match operation {
            Operation::Complete => Some(self.reserve().await),
            _ => None,
        }
    }

    async fn run(&self, operation: Operation, prepared: Option<Claim>) {
        let mut plain = self.plain.clone();
        match operation {
            Operation::Ping => {
                let _pong: String = redis::cmd("PING")
                    .query_async(&mut plain)
                    .await
                    .expect("PONG");
            }
            Operation::Set => {
                let mut set = redis::cmd("SET");
                set.arg(&Nonce::random().as_bytes()[..]).arg(&BODY[..72]);
                set.arg("NX").arg("GET").arg("PX").arg(600_000);
                let none: Option<Vec<u8>> = set.query_async(&mut plain).await.expect("an answer");
                assert!(none.is_none());
            }
            Operation::Reserve => drop(self.reserve().await),
            Operation::Complete => self.complete(&prepared.expect("a claim")).await,
            Operation::Cycle => self.complete(&self.reserve().await).await,
            Operation::Replay => match self
                .store
                .reserve(&self.done, &fingerprint(), &terms())
                .await
            {
                Ok(Reservation::Replay {
                    response: saved, ..
                }) => assert_eq!(saved, response()),
                other => panic!("no replay: {other:?}"),
            },
        }
    }

    async fn reserve(&self) -> Claim {
        match self
            .store
            .reserve(&random_key(), &fingerprint(), &terms())
            .await
        {
            Ok(Reservation::Acquired(claim)) => claim,
            other => panic!("not acquired: {other:?}"),
        }
    }

    async fn complete(&self, claim: &Claim) {
        let completed = self.store.complete(claim, &response(), RETENTION).await;
        completed.expect("a completed key");
    }
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let Some(server) = servers::Redis::start() else {
        return;
    };
    let bench = Arc::new(runtime.block_on(open(&server)));
    let alone = runtime.block_on(alone(&bench));
    let together = runtime.block_on(together(&bench));
    println!(
        "{:<10} {:>8} {:>10}   {:>6} {:>6}   reach",
        "", "us, one", "per s, 32", "one", "32"
    );
    for (index, operation) in ALL.into_iter().enumerate() {
        println!(
            "{:<10} {:>8.1} {:>10.0}   {:>6.2} {:>6.2}   {}",
            format!("{operation:?}"),
            alone[index],
            together[index],
            alone[index] / alone[0],
            together[0] / together[index],
            REACH[index],
        );
    }
}

/// A store with a key that is done, and each operation shown once.
async fn open(server: &servers::Redis) -> Bench {
    let client = Client::open(server.url()).expect("a client");
    let plain = client
        .get_multiplexed_async_connection()
        .await
        .expect("a connection");
    let store = RedisStore::new(client);
    let done = random_key();
    let Ok(Reservation::Acquired(claim)) = store.reserve(&done, &fingerprint(), &terms()).await
    else {
        panic!("not acquired")
    };
    let bench = Bench { plain, store, done };
    bench.complete(&claim).await;
    for operation in ALL {
        bench.run(operation, bench.prepare(operation).await).await;
    }
    // The key that is done; set; and one each of reserve, complete and the cycle.
    assert_eq!(server.run::<usize>(&["DBSIZE"]).expect("a number"), 5);
    bench
}

/// Microseconds, by one caller that goes round all operations.
async fn alone(bench: &Bench) -> [f64; ALL.len()] {
    let mut samples: [Vec<f64>; ALL.len()] = Default::default();
    for _ in 0..TURNS {
        for (operation, samples) in ALL.into_iter().zip(&mut samples) {
            let prepared = bench.prepare(operation).await;
            let start = Instant::now();
            bench.run(operation, prepared).await;
            samples.push(start.elapsed().as_nanos() as f64 / 1e3);
        }
    }
    samples.map(|samples| quantile(samples, 4))
}

/// Operations per second, by many callers.
async fn together(bench: &Arc<Bench>) -> [f64; ALL.len()] {
    let mut samples: [Vec<f64>; ALL.len()] = Default::default();
    for _ in 0..SLICES {
        for (operation, samples) in ALL.into_iter().zip(&mut samples) {
            let mut callers = JoinSet::new();
            for _ in 0..CALLERS {
                callers.spawn(caller(Arc::clone(bench), operation));
            }
            samples.push(callers.join_all().await.into_iter().sum());
        }
    }
    samples.map(|samples| quantile(samples, 2))
}

/// What one of them gets done per second of its operations' own time.
async fn caller(bench: Arc<Bench>, operation: Operation) -> f64 {
    let (mut done, mut spent) = (0_usize, Duration::ZERO);
    while spent < SLICE {
        let prepared = bench.prepare(operation).await;
        let start = Instant::now();
        bench.run(operation, prepared).await;
        spent += start.elapsed();
        done += 1;
    }
    done as f64 / spent.as_secs_f64()
}

fn quantile(mut samples: Vec<f64>, share: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / share]
}

fn response() -> SavedResponse {
    let body = Bytes::from_static(&BODY);
    SavedResponse::new(StatusCode::CREATED, HeaderMap::new(), body, None)
}

fn fingerprint() -> Fingerprint {
    Fingerprint::new(Tag::from_u16(0x0101), [1; 32])
}

fn terms() -> Terms {
    Terms::new(Nonce::random(), Duration::from_secs(60), RETENTION)
}

fn random_key() -> RecordKey {
    let halves = [*Nonce::random().as_bytes(), *Nonce::random().as_bytes()];
    RecordKey::from_bytes(halves.concat().try_into().expect("32 bytes"))
}

static BODY: [u8; 300] = [7; 300];
const RETENTION: Duration = Duration::from_secs(600);
