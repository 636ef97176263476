//! A server that hangs under load: what is asked, told and kept meanwhile is bounded, and when it goes on all is as before.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Request, StatusCode};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet, block_in_place},
    time::{Instant, MissedTickBehavior, interval},
};
use tower::service_fn;
use tower_idempotency::{IdempotencyLayer, RejectionKind, RequestBody, store::StoreKind::Lease};

use super::{
    app::App,
    pool::{assert_in_order, connections},
    start_server,
    world::{World, new_account},
};
use crate::{
    network::{LIMIT, end, until},
    support::{
        Answer, Body,
        handler::{Gate, response},
    },
    table::seen,
};

const LEASE: Duration = Duration::from_millis(900);
const CLIENTS: usize = 16;
/// Runs that go on while the server hangs, half of which end meanwhile.
const LONG: usize = 4;
const LATE_CALLS: usize = 16;
const SETTLEMENTS: usize = 16;
const CONNECTIONS: u32 = 4;
/// How many requests are refused before the server goes on.
const REFUSALS: usize = 500;
/// Between two requests of a client: refused at once, they would be too many to ask for all of them again.
const PAUSE: Duration = Duration::from_millis(20);

/// Those who ask at the same moment may all pass the bound; whoever had been served by then may owe a completion; and each claim
/// has as many renewals as fall into a lease.
const MOST_CALLS: usize = LATE_CALLS + 2 * CLIENTS + 3 * (CLIENTS + LONG);
/// A client, a run and its renewal; a task for each call; and what the driver and the pool have.
const MOST_TASKS: usize = 3 * (CLIENTS + LONG) + MOST_CALLS + 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_under_load_makes_nothing_grow_and_is_back_at_once() {
    let Some(server) = start_server() else {
        return;
    };
    let world = World::on(&server).await;
    let load = Load::start(&world);
    load.serves().await;
    assert_in_order(&world, &load.app.pool).await;
    let tasks_before = Handle::current().metrics().num_alive_tasks();

    let mut long = load.start_long_runs().await;
    let mut clients = load.start_clients();
    until(|| async { (load.answers().len() >= 100).then_some(()) }).await;
    block_in_place(|| server.freeze());
    let (refused, frozen) = (load.refused(), Instant::now());
    until(|| async {
        let refused = load.refused() - refused >= REFUSALS;
        (refused && frozen.elapsed() >= 3 * LEASE).then_some(())
    })
    .await;
    // Their answers are the callers', whether the server can be told or not.
    for asked in long.drain(..LONG / 2) {
        load.gate.open();
        assert_eq!(
            end(asked).await.expect("no panic").status(),
            StatusCode::CREATED
        );
    }
    server.thaw();
    for asked in long {
        load.gate.open();
        assert_eq!(
            end(asked).await.expect("no panic").status(),
            StatusCode::CREATED
        );
    }
    load.is_over.store(true, Ordering::SeqCst);
    while let Some(ended) = end(clients.join_next()).await {
        ended.expect("no panic");
    }

    // Normal at once: as soon as what was asked before has been answered.
    load.serves().await;
    assert_eq!(load.app.drain.wait(LIMIT).await, 0);
    end(load.app.store.all_calls_ended()).await;
    load.assert_ran_once_each().await;
    let most = load.most();
    assert!(most.calls <= MOST_CALLS, "{most:?}, {MOST_CALLS}");
    assert!(most.tasks <= MOST_TASKS, "{most:?}, {MOST_TASKS}");
    assert_in_order(&world, &load.app.pool).await;
    let connections = connections(&world, &load.app.pool).await;
    assert!(connections <= CONNECTIONS as usize, "{connections}");
    until(|| async {
        let tasks = Handle::current().metrics().num_alive_tasks();
        (tasks <= tasks_before).then_some(())
    })
    .await;
}

/// What the keys of runs that are to last start with.
const LONG_RUN: &str = "long";

/// Clients that ask under one new key after the other, over one application.
#[derive(Clone)]
struct Load {
    app: App,
    /// Where the long runs wait.
    gate: Gate,
    is_over: Arc<AtomicBool>,
    /// How often the handler ran, by key.
    runs: Arc<Mutex<HashMap<String, usize>>>,
    /// What was answered, by key.
    answers: Arc<Mutex<HashMap<String, String>>>,
    most: Arc<Mutex<Most>>,
}

/// The most that there were at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Most {
    calls: usize,
    tasks: usize,
}

const UNAVAILABLE: &str = "503 store_unavailable";

/// Whether the store was too slow to answer, or still is to be told of what came late: until then the claim of a run that is over stands,
/// and may lapse.
fn is_to_ask_again(answer: &Answer) -> bool {
    matches!(
        answer.rejection(),
        Some(
            RejectionKind::StoreUnavailable
                | RejectionKind::InFlight
                | RejectionKind::OutcomeUnknown
        )
    )
}

impl Load {
    fn start(world: &World) -> Self {
        let (gate, runs) = (
            Gate::closed(),
            Arc::<Mutex<HashMap<String, usize>>>::default(),
        );
        let settings = |layer: IdempotencyLayer| {
            layer
                .with_lease(LEASE)
                .with_store_call_limit(LEASE / 3)
                .with_run_limit(LIMIT)
                .with_late_call_bound(LATE_CALLS)
                .with_settlement_bounds(SETTLEMENTS, usize::MAX)
        };
        let app = App::around(world, Lease, CONNECTIONS, settings, |_, _| {
            let (gate, runs) = (gate.clone(), Arc::clone(&runs));
            service_fn(move |request: Request<RequestBody<Body>>| {
                let key = request.headers()["idempotency-key"].to_str();
                let key = key.expect("a key").to_owned();
                *runs
                    .lock()
                    .expect("no panic")
                    .entry(key.clone())
                    .or_default() += 1;
                let gate = gate.clone();
                async move {
                    if key.starts_with(LONG_RUN) {
                        gate.pass().await;
                    }
                    Ok(response(StatusCode::CREATED, key))
                }
            })
        });
        Self {
            app,
            gate,
            is_over: Arc::default(),
            runs,
            answers: Arc::default(),
            most: Arc::default(),
        }
    }

    /// Waits until a request is served.
    async fn serves(&self) {
        until(|| async {
            let answer = seen(&self.app.charge(&new_account()).await);
            assert!(
                answer == UNAVAILABLE || answer.starts_with("201"),
                "{answer}"
            );
            answer.starts_with("201").then_some(())
        })
        .await;
    }

    /// Each has its run when this ends.
    async fn start_long_runs(&self) -> Vec<JoinHandle<Answer>> {
        let mut runs = Vec::new();
        for number in 0..LONG {
            let key = format!("{LONG_RUN}-{number}");
            // Whatever it is, the request has an end.
            let run = until(|| async {
                let mut asked = self.app.spawn_charge(&key);
                tokio::select! {
                    () = self.gate.reached() => Some(asked),
                    refused = &mut asked => {
                        assert!(is_to_ask_again(&refused.expect("no panic")));
                        None
                    }
                }
            });
            runs.push(run.await);
        }
        runs
    }

    fn start_clients(&self) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let load = self.clone();
            clients.spawn(async move {
                let mut pause = interval(PAUSE);
                pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !load.is_over.load(Ordering::SeqCst) {
                    let key = new_account();
                    let answer = seen(&load.app.charge(&key).await);
                    load.answered(key, answer);
                    pause.tick().await;
                }
            });
        }
        clients
    }

    fn answered(&self, key: String, answer: String) {
        let mut answers = self.answers.lock().expect("no panic");
        answers.insert(key, answer);
        let mut most = self.most.lock().expect("no panic");
        most.calls = most.calls.max(self.app.store.running());
        let tasks = Handle::current().metrics().num_alive_tasks();
        most.tasks = most.tasks.max(tasks);
    }

    /// No key ran twice, what was answered is replayed, and what was refused may be asked again.
    async fn assert_ran_once_each(&self) {
        let answers: Vec<_> = self.answers().into_iter().collect();
        let mut clients = JoinSet::new();
        for answers in answers.chunks(answers.len().div_ceil(CLIENTS)) {
            let (load, answers) = (self.clone(), answers.to_vec());
            clients.spawn(async move {
                for (key, answer) in answers {
                    let served = format!("201 {key}");
                    let expected = match &*answer {
                        UNAVAILABLE => served,
                        _ => {
                            assert_eq!(answer, served);
                            format!("{served}, replayed")
                        }
                    };
                    assert_eq!(load.asked_again(&key).await, expected);
                }
            });
        }
        while let Some(ended) = end(clients.join_next()).await {
            ended.expect("no panic");
        }
        for number in 0..LONG {
            let key = format!("{LONG_RUN}-{number}");
            let again = self.asked_again(&key).await;
            assert_eq!(again, format!("201 {key}, replayed"));
        }
        let runs = self.runs.lock().expect("no panic");
        assert!(runs.values().all(|runs| *runs == 1));
    }

    /// What is answered when the store is not too slow for its limit, as it may be on a machine with much else to do.
    async fn asked_again(&self, key: &str) -> String {
        until(|| async {
            let answer = self.app.charge(key).await;
            (!is_to_ask_again(&answer)).then(|| seen(&answer))
        })
        .await
    }

    fn answers(&self) -> HashMap<String, String> {
        self.answers.lock().expect("no panic").clone()
    }

    fn refused(&self) -> usize {
        let answers = self.answers.lock().expect("no panic");
        answers
            .values()
            .filter(|answer| *answer == UNAVAILABLE)
            .count()
    }

    fn most(&self) -> Most {
        *self.most.lock().expect("no panic")
    }
}
