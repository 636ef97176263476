//! What is done to a server all the time, under load: each key runs once all the same.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, StatusCode};
use redis::cluster::ClusterClient;
use tokio::task::{JoinHandle, JoinSet, LocalSet, block_in_place, spawn_blocking};
use tower::{Layer, service_fn};
use tower_idempotency::{
    Drain, IdempotencyContext, IdempotencyLayer, RecordKey, RedisStore, RequestBody, ScopeBy,
    StoreError, StoreErrorKind,
    store::{Note, Reservation, Steps, Store, Takeover},
};

use crate::{
    redis_support::{self, *},
    relay::Relay,
    servers::{Redis, RedisCluster},
    support::{Body, handler::response, post, send},
};

const CLIENTS: usize = 8;
const KEYS: usize = 40;
/// How much is served from one time to the next.
const SERVED: usize = 4;

/// Does this again and again, each time when some more has been served, until it is told that it is enough.
struct Storm {
    is_over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    rounds: Arc<AtomicUsize>,
    going_on: JoinHandle<()>,
}

impl Storm {
    fn begin(mut round: impl FnMut() + Send + 'static) -> Self {
        let [served, rounds] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        let is_over = Arc::<AtomicBool>::default();
        let (until, counted) = (Arc::clone(&is_over), Arc::clone(&rounds));
        let waited_for = Arc::clone(&served);
        let going_on = spawn_blocking(move || {
            while !until.load(Ordering::SeqCst) {
                let rounds = counted.load(Ordering::SeqCst);
                if waited_for.load(Ordering::SeqCst) < rounds * SERVED {
                    std::thread::yield_now();
                    continue;
                }
                round();
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self {
            is_over,
            served,
            rounds,
            going_on,
        }
    }

    fn serves_one_more(&self) {
        self.served.fetch_add(1, Ordering::SeqCst);
    }

    fn rounds(&self) -> usize {
        self.rounds.load(Ordering::SeqCst)
    }

    async fn end(self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.going_on.await.unwrap();
    }
}

/// Clients that ask under one key after the other, each again until it is answered, for as long as the storm is young.
async fn load(store: RedisStore, storm: Storm, rounds: usize) {
    let (drain, runs) = (
        Drain::new(),
        Arc::<Mutex<HashMap<String, usize>>>::default(),
    );
    let counted = Arc::clone(&runs);
    let lease = Duration::from_secs(1);
    let service = IdempotencyLayer::new(store, ScopeBy::single_tenant())
        .with_takeover(Takeover::RunAgain)
        .with_lease(lease)
        .with_store_call_limit(lease / 3)
        .with_drain(drain.clone())
        .layer(service_fn(move |request: Request<RequestBody<Body>>| {
            let context = request.extensions().get::<IdempotencyContext>();
            let key = context.unwrap().key().as_str().to_owned();
            *counted.lock().unwrap().entry(key.clone()).or_default() += 1;
            async { Ok::<_, &str>(response(StatusCode::CREATED, key)) }
        }));
    let (mut clients, local, storm) = (JoinSet::new(), LocalSet::new(), Arc::new(storm));
    for client in 0..CLIENTS {
        let (service, storm) = (service.clone(), Arc::clone(&storm));
        let client = async move {
            for number in 0.. {
                if number >= KEYS && storm.rounds() >= rounds {
                    break;
                }
                let key = format!("{client}-{number}");
                until(|| async {
                    let answer = send(&service, post(&key, "1")).await;
                    answer.status() == StatusCode::CREATED && answer.text() == key
                })
                .await;
                storm.serves_one_more();
            }
        };
        clients.spawn_local_on(client, &local);
    }
    let all = async {
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
    };
    local.run_until(all).await;
    let storm = Arc::into_inner(storm).expect("no client any more");
    storm.end().await;
    until(|| async { drain.running() == 0 }).await;
    let keys: Vec<_> = runs.lock().unwrap().keys().cloned().collect();
    for key in keys {
        until(|| async { send(&service, post(&key, "1")).await.is_replay() }).await;
    }
    let runs = runs.lock().unwrap();
    assert!(runs.values().all(|runs| *runs == 1), "{runs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_killed_and_scripts_flushed_all_the_time() {
    let Some(server) = block_in_place(Redis::start) else {
        return;
    };
    let (store, server) = (store_at(server.url()), Arc::new(server));
    let stormy = Arc::clone(&server);
    let storm = Storm::begin(move || {
        stormy.run::<()>(&["SCRIPT", "FLUSH"]).unwrap();
        stormy
            .run::<u32>(&["CLIENT", "KILL", "TYPE", "normal"])
            .unwrap();
    });
    load(store, storm, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_take_over_from_each_other_all_the_time() {
    let servers = block_in_place(|| {
        let [one, other] = [Redis::start()?, Redis::start()?];
        other.follow(&one);
        Some([one, other].map(Arc::new))
    });
    let Some(servers) = servers else {
        return;
    };
    let [mut master, mut replica] = servers.clone();
    let relay = Relay::start(master.port()).await;
    let store = store_at(&relay.url);
    // Nothing is written meanwhile, and nothing lost.
    let storm = Storm::begin(move || {
        let is_master = |server: &Redis| {
            let told: String = server.run(&["INFO", "replication"]).unwrap();
            told.contains("role:master")
        };
        while master.run::<()>(&["FAILOVER", "TIMEOUT", "10000"]).is_err() {
            std::thread::yield_now();
        }
        while !is_master(&replica) || is_master(&master) {
            std::thread::yield_now();
        }
        relay.lead_to(replica.port());
        std::mem::swap(&mut master, &mut replica);
    });
    load(store, storm, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_to_other_masters_all_the_time() {
    for replicas in [0, 1] {
        let Some(cluster) = block_in_place(RedisCluster::start) else {
            return;
        };
        let client = ClusterClient::builder(cluster.urls())
            .response_timeout(Duration::from_secs(1))
            .build();
        let mut store = RedisStore::cluster(client.unwrap());
        if replicas > 0 {
            store = store.with_replicas(replicas, Duration::from_secs(5));
        }
        let keys: Vec<_> = (0..CLIENTS).map(|_| fresh_key()).collect();
        let moved = keys.clone();
        let storm = Arc::new(Storm::begin(move || {
            for key in &moved {
                move_slot(&cluster, &name_of(key));
            }
        }));
        let mut clients = JoinSet::new();
        for key in keys {
            let (store, storm) = (store.clone(), Arc::clone(&storm));
            clients.spawn(async move {
                let mut lives = 0;
                while lives < KEYS || storm.rounds() < 5 {
                    live(&store, &key).await;
                    storm.serves_one_more();
                    lives += 1;
                }
            });
        }
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        let storm = Arc::into_inner(storm).expect("no client any more");
        storm.end().await;
    }
}

/// All that becomes of a record, each call again until it is answered.
async fn live(store: &RedisStore, key: &RecordKey) {
    let (mine, others, fingerprint) = (terms(), terms(), fingerprint(1));
    let claimed = match answered(|| store.reserve(key, &fingerprint, &mine)).await {
        Reservation::Acquired(claim) => claim,
        other => panic!("not acquired: {other:?}"),
    };
    answered(|| store.renew(&claimed, LEASE)).await;
    let note = Note::new("step", "1");
    answered(|| store.note(&claimed, &note)).await;
    let notes = answered(|| store.notes(&claimed)).await;
    assert_eq!(notes, [note]);
    assert!(matches!(
        answered(|| store.reserve(key, &fingerprint, &others)).await,
        Reservation::InFlight { .. }
    ));
    let done = redis_support::response("done");
    answered(|| store.complete(&claimed, &done, RETENTION)).await;
    let again = answered(|| store.reserve(key, &fingerprint, &others)).await;
    assert_replays(&again, "done");
    answered(|| store.forget(key)).await;
    assert!(answered(|| store.inspect(key)).await.is_none());
}

async fn answered<T, F>(call: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let answer = async {
        loop {
            match call().await {
                Ok(answer) => return answer,
                Err(error) => assert_ne!(error.kind(), StoreErrorKind::LostClaim, "{error:?}"),
            }
            tokio::task::yield_now().await;
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(60), answer).await;
    answer.expect("an answer in time")
}

/// Gives the slot of a key to another master, with all that is in it.
fn move_slot(cluster: &RedisCluster, name: &str) {
    let from = cluster.master_of(name);
    let owners = ["a", "b", "c", "d", "e", "f", "g"].map(|any| cluster.master_of(any));
    let to = owners
        .into_iter()
        .find(|to| to.port() != from.port())
        .unwrap();
    let slot = from
        .run::<u16>(&["CLUSTER", "KEYSLOT", name])
        .unwrap()
        .to_string();
    let [from_id, to_id] = [from, to].map(|node| node.run::<String>(&["CLUSTER", "MYID"]).unwrap());
    let set = |node: &Redis, state: &str, id: &str| {
        node.run::<()>(&["CLUSTER", "SETSLOT", &slot, state, id])
            .unwrap();
    };
    set(to, "IMPORTING", &from_id);
    set(from, "MIGRATING", &to_id);
    let port = to.port().to_string();
    loop {
        let names: Vec<String> = from
            .run(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"])
            .unwrap();
        if names.is_empty() {
            break;
        }
        for name in names {
            let () = from
                .run(&["MIGRATE", "127.0.0.1", &port, &name, "0", "5000"])
                .unwrap();
        }
    }
    set(to, "NODE", &to_id);
    set(from, "NODE", &to_id);
    for node in cluster.nodes() {
        let _replica = node.run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
    }
}
