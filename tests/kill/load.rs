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
    time::{Instant, interval_at},
};
use uuid::Uuid;

use crate::{
    blocked::Requests,
    payments_app::{Charge, Database},
    server::{Answer, Caller, fresh_key},
};

/// A key whose answer isn't final by then hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the clients go by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How many clients there are.
    pub(crate) clients: usize,
    /// The longest that they wait before they retry.
    pub(crate) pause: Duration,
    /// Whether 409 `outcome_unknown` is a final answer.
    pub(crate) may_be_unknown: bool,
    /// The longest that a key may be in flight after the last run died that could have it.
    pub(crate) longest_blocked: Duration,
}

impl Rules {
    /// Those of a transaction store, which goes by no lease.
    pub(crate) const TRANSACTION: Self = Self {
        clients: 6,
        pause: Duration::from_millis(10),
        may_be_unknown: false,
        longest_blocked: PATIENCE,
    };
}

/// Clients that charge and retry, each request at an app of their choice.
pub(crate) struct Clients {
    client: Client,
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
    /// Keys that ended with 409 `outcome_unknown`.
    unknown: usize,
    /// The longest that a key was seen in flight after the last run died that could have it.
    longest_blocked: Duration,
    /// The longest that it took until an answer was final.
    slowest: Duration,
}

/// A key that was used to its end.
pub(crate) struct Charged {
    pub(crate) key: String,
    amount: i64,
    /// None if the outcome is unknown.
    pub(crate) answer: Option<Answer>,
}

impl Clients {
    pub(crate) fn start(rules: Rules, apps: impl Into<Vec<SocketAddr>>) -> Self {
        let (addresses, receiver) = watch::channel(apps.into());
        let client = Client {
            rules,
            over: Arc::default(),
            counts: Arc::default(),
            addresses: receiver,
        };
        let tasks = (0..rules.clients)
            .map(|_| tokio::spawn(client.clone().charge()))
            .collect();
        Self {
            client,
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
        self.client.over.store(true, Ordering::Relaxed);
        let mut charged = Vec::new();
        for task in self.tasks {
            charged.extend(task.await.expect("a client that finished"));
        }
        // A response that was given once is given for ever.
        for charged in &charged {
            self.client.assert_still_answered(charged).await;
        }
        let counts = mem::take(&mut *self.client.counts.lock().expect("the counts"));
        Outcome { charged, counts }
    }
}

/// One of the clients.
#[derive(Clone)]
struct Client {
    rules: Rules,
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
            let requests = Requests::default();
            // Two senders of one request, as with a proxy that retries by itself; and a retry that comes after all is done.
            let (one, other) = tokio::join!(
                self.until_final(&key, amount, &requests),
                self.until_final(&key, amount, &requests),
            );
            let late = self.until_final(&key, amount, &requests).await;
            let answers: Vec<_> = [one, other].into_iter().flatten().collect();
            assert!(late.as_ref().is_none_or(Answer::is_replay), "{key}");
            let runs = answers.iter().filter(|answer| !answer.is_replay()).count();
            assert!(runs < 2, "{key} ran twice");
            self.count(|counts| {
                counts.answers_lost += usize::from(late.is_some() && runs == 0);
                counts.unknown += usize::from(late.is_none());
            });
            let charged = Charged {
                key,
                amount,
                answer: late,
            };
            for answer in answers {
                charged.assert_answered(Some(answer));
            }
            charges.push(charged);
        }
        charges
    }

    async fn assert_still_answered(&self, charged: &Charged) {
        if charged.answer.is_some() {
            let again = self
                .until_final(&charged.key, charged.amount, &Requests::default())
                .await;
            assert!(again.as_ref().is_some_and(Answer::is_replay));
            charged.assert_answered(again);
        }
    }

    /// Retries with the same key until the answer is final: not 409 or 503, and no broken connection. None if it is that the
    /// outcome is unknown.
    async fn until_final(&self, key: &str, amount: i64, requests: &Requests) -> Option<Answer> {
        let order = format!(r#"{{"amount":{amount},"currency":"eur","card":"tok_visa"}}"#);
        let start = Instant::now();
        let mut last = None;
        for attempt in 1.. {
            if attempt > 1 {
                random_moment_within(self.rules.pause).await;
            }
            if start.elapsed() > PATIENCE {
                break;
            }
            let caller = Caller::new(self.any_app());
            self.count(|counts| counts.requests += 1);
            let request = caller.keyed("/charges", "alice", key, &order);
            let sent = requests.send();
            let answer = caller.exchange(request).await;
            let blocked = requests.answered(&sent, &answer);
            let Ok(answer) = answer else {
                self.count(|counts| counts.broken += 1);
                continue;
            };
            if [StatusCode::CONFLICT, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status) {
                let code = answer.code();
                if code == "outcome_unknown" && self.rules.may_be_unknown {
                    return None;
                }
                let longest = self.rules.longest_blocked;
                assert!(blocked <= longest, "{key} was blocked for {blocked:?}");
                self.count(|counts| {
                    *counts.asked_to_retry.entry(code).or_default() += 1;
                    counts.longest_blocked = counts.longest_blocked.max(blocked);
                });
                last = Some(answer);
                continue;
            }
            assert_eq!(answer.status, StatusCode::CREATED, "{key}: {answer:?}");
            self.count(|counts| {
                counts.replays += usize::from(answer.is_replay());
                counts.slowest = counts.slowest.max(start.elapsed());
            });
            return Some(answer);
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
    pub(crate) charged: Vec<Charged>,
    counts: Counts,
}

impl Outcome {
    /// Compares what the clients were told with what a connection of the test's own reads: a charge for each answer, and at most
    /// one for each key whose outcome is unknown. How many of these have one.
    pub(crate) async fn assert_charged_once(&self, database: &Database) -> usize {
        let mut unknown = 0;
        let mut made: BTreeMap<String, Charge> = BTreeMap::new();
        for charge in database.charges().await {
            let earlier = made.insert(charge.key.clone(), charge);
            assert_eq!(earlier, None, "charged twice");
        }
        for charged in &self.charged {
            let made = made.remove(&charged.key);
            match charged.row() {
                Some(row) => assert_eq!(made, Some(row)),
                None => unknown += usize::from(made.is_some()),
            }
        }
        assert_eq!(made, BTreeMap::new(), "nobody asked for these");
        unknown
    }

    pub(crate) async fn assert_recorded_once(&self, database: &Database) {
        let records = "SELECT count(*) FROM tower_idempotency_transactions";
        assert_eq!(database.count(records).await, self.charged.len());
    }

    /// The load is worth nothing if the kills fell between the requests.
    pub(crate) fn assert_met_a_kill(&self) {
        assert_ne!(self.counts.broken, 0, "no request met a kill");
    }

    /// Likewise, where the store was killed and the apps were not.
    #[cfg(feature = "redis")]
    pub(crate) fn assert_met_an_outage(&self) {
        let refused = self.counts.asked_to_retry.get("store_unavailable");
        assert_ne!(refused, None, "no request met a kill");
        assert_eq!(self.counts.broken, 0);
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys, {:?}", self.charged.len(), self.counts)
    }
}

impl Charged {
    fn assert_answered(&self, answer: Option<Answer>) {
        let [answer, answered] = [&answer, &self.answer].map(|answer| {
            let answer = answer.as_ref();
            answer.map(Answer::lasting)
        });
        assert_eq!(answer, answered, "{}", self.key);
    }

    /// The charge that there must be, and no other.
    fn row(&self) -> Option<Charge> {
        let answer = self.answer.as_ref()?;
        Some(Charge {
            key: self.key.clone(),
            id: answer.id(),
            account: "alice".to_owned(),
            amount: self.amount,
        })
    }
}

/// How many kills the environment asks for.
pub(crate) fn kills(default: u32) -> u32 {
    std::env::var("KILLS").map_or(default, |kills| kills.parse().expect("a number"))
}

/// The moment of a kill or a retry. Nothing is waited for: a kill may fall anywhere, also before the first request.
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
