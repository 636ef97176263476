use std::{
    collections::BTreeMap,
    fmt, mem,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, interval_at},
};
use uuid::Uuid;

use crate::{
    payments_app::{Charge, Database},
    server::{Answer, Caller, fresh_key},
};

const CLIENTS: usize = 6;
/// A key whose answer isn't final by then hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Clients that charge and retry, each request at an app of their choice.
pub(crate) struct Clients {
    over: Arc<AtomicBool>,
    counts: Arc<Mutex<Counts>>,
    addresses: watch::Sender<Vec<SocketAddr>>,
    tasks: Vec<JoinHandle<Vec<Charged>>>,
}

/// What the clients met.
#[derive(Debug, Default)]
struct Counts {
    requests: usize,
    /// No answer came, or only a part of it.
    broken: usize,
    /// 409 and 503, by their codes.
    asked_to_retry: BTreeMap<String, usize>,
    replays: usize,
    /// Keys whose charge was committed and whose answer a kill had taken: all that the client ever got are replays.
    answers_lost: usize,
    /// The longest that it took until an answer was final.
    slowest: Duration,
}

/// A key that was charged, and its answer.
struct Charged {
    key: String,
    amount: i64,
    answer: Answer,
}

impl Clients {
    pub(crate) fn start(apps: impl Into<Vec<SocketAddr>>) -> Self {
        let (addresses, receiver) = watch::channel(apps.into());
        let over = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Mutex::default());
        let client = || Client {
            over: Arc::clone(&over),
            counts: Arc::clone(&counts),
            addresses: receiver.clone(),
        };
        let tasks = (0..CLIENTS)
            .map(|_| tokio::spawn(client().charge()))
            .collect();
        Self {
            over,
            counts,
            addresses,
            tasks,
        }
    }

    /// Where the apps are now.
    pub(crate) fn send_to(&self, apps: impl Into<Vec<SocketAddr>>) {
        self.addresses.send_replace(apps.into());
    }

    /// Lets them end what they began.
    pub(crate) async fn finish(self) -> Outcome {
        self.over.store(true, Ordering::Relaxed);
        let mut charged = Vec::new();
        for task in self.tasks {
            charged.extend(task.await.expect("a client that finished"));
        }
        let counts = mem::take(&mut *self.counts.lock().expect("the counts"));
        Outcome { charged, counts }
    }
}

/// One of the clients.
struct Client {
    over: Arc<AtomicBool>,
    counts: Arc<Mutex<Counts>>,
    addresses: watch::Receiver<Vec<SocketAddr>>,
}

impl Client {
    /// Charges under one key after the other until the load is over, each to its end.
    async fn charge(self) -> Vec<Charged> {
        let mut charges = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            let key = fresh_key();
            let amount = 1 + i64::try_from(random_below(1_000_000)).expect("a small number");
            // Two senders of one request, as with a proxy that retries by itself; and a retry that comes after all is done.
            let (answer, other) = tokio::join!(
                self.until_final(&key, amount),
                self.until_final(&key, amount),
            );
            let late = self.until_final(&key, amount).await;
            assert_eq!(answer.lasting(), other.lasting(), "{key}");
            assert_eq!(answer.lasting(), late.lasting(), "{key}");
            assert!(late.is_replay(), "{key}");
            assert!(answer.is_replay() || other.is_replay(), "{key} ran twice");
            let lost = answer.is_replay() && other.is_replay();
            self.count(|counts| counts.answers_lost += usize::from(lost));
            charges.push(Charged {
                key,
                amount,
                answer,
            });
        }
        charges
    }

    /// Retries with the same key until the answer is final: not 409 or 503, and no broken connection.
    async fn until_final(&self, key: &str, amount: i64) -> Answer {
        let order = format!(r#"{{"amount":{amount},"currency":"eur","card":"tok_visa"}}"#);
        let start = Instant::now();
        let mut pause = interval(Duration::from_millis(5));
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        while start.elapsed() < PATIENCE {
            pause.tick().await;
            let caller = Caller::new(self.any_app());
            self.count(|counts| counts.requests += 1);
            let request = caller.keyed("/charges", "alice", key, &order);
            let Some(answer) = caller.try_send(request).await else {
                self.count(|counts| counts.broken += 1);
                continue;
            };
            if [StatusCode::CONFLICT, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status) {
                let code = answer.code();
                self.count(|counts| *counts.asked_to_retry.entry(code).or_default() += 1);
                last = Some(answer);
                continue;
            }
            assert_eq!(answer.status, StatusCode::CREATED, "{key}: {answer:?}");
            self.count(|counts| {
                counts.replays += usize::from(answer.is_replay());
                counts.slowest = counts.slowest.max(start.elapsed());
            });
            return answer;
        }
        panic!("{key} hangs: {last:?} is the last answer after {PATIENCE:?}");
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.counts.lock().expect("the counts"));
    }

    fn any_app(&self) -> SocketAddr {
        let addresses = self.addresses.borrow();
        addresses[random_below(addresses.len())]
    }
}

/// What became of the load.
pub(crate) struct Outcome {
    charged: Vec<Charged>,
    counts: Counts,
}

impl Outcome {
    /// Compares what the clients were told with what a connection of the test's own reads.
    pub(crate) async fn assert_charged_once(&self, database: &Database) {
        assert_ne!(self.counts.broken, 0, "no request met a kill");
        let mut told: Vec<_> = self.charged.iter().map(Charged::row).collect();
        let mut made = database.charges().await;
        told.sort();
        made.sort();
        assert_eq!(made, told);
        let records = "SELECT count(*) FROM tower_idempotency_transactions";
        assert_eq!(database.count(records).await, told.len());
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys, {:?}", self.charged.len(), self.counts)
    }
}

impl Charged {
    /// The charge that there must be, and no other.
    fn row(&self) -> Charge {
        Charge {
            key: self.key.clone(),
            id: self.answer.id(),
            account: "alice".to_owned(),
            amount: self.amount,
        }
    }
}

/// How many kills the environment asks for.
pub(crate) fn kills(default: u32) -> u32 {
    std::env::var("KILLS").map_or(default, |kills| kills.parse().expect("a number"))
}

/// The moment of a kill. Nothing is waited for: it may fall anywhere, also before the first request.
pub(crate) async fn random_moment_within(longest: Duration) {
    let micros = usize::try_from(longest.as_micros()).expect("a short time");
    let micros = u64::try_from(random_below(micros)).expect("a short time");
    let moment = Instant::now() + Duration::from_micros(micros);
    interval_at(moment, Duration::from_secs(1)).tick().await;
}

pub(crate) fn random_below(limit: usize) -> usize {
    let limit = u128::try_from(limit).expect("a number");
    usize::try_from(Uuid::new_v4().as_u128() % limit).expect("below a number")
}
