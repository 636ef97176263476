//! What a lease store promises by itself, whatever the handler does: its runs are written down by an app of the test's own.

use std::{collections::BTreeMap, env, fs::File, io::Write, path::Path, process, sync::Arc};

use axum::{Json, Router, extract::State, routing::post};
use http::StatusCode;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncReadExt, stdin},
    net::TcpListener,
    process::Command,
    task::block_in_place,
    time::Duration,
};
use tower_idempotency::{
    IdempotencyContext, IdempotencyLayer, RedisStore, ScopeBy, store::Takeover,
};

use crate::{
    load::{kills, random_moment_within},
    payments_app::App,
    redis::{LEASE, RULES, killing_apps},
    servers::Redis,
};

const STORE: &str = "IDEMPOTENCY_TEST_STORE";
const JOURNAL: &str = "IDEMPOTENCY_TEST_JOURNAL";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_again_runs_a_key_at_least_once_and_never_twice_at_a_time() {
    let Some(redis) = block_in_place(Redis::start) else {
        return;
    };
    let journal = NamedTempFile::new().expect("a file");
    let start = async || {
        let mut app = Command::new(env::current_exe().expect("this program"));
        app.args(["--ignored", "--exact", "runs::the_app", "--nocapture"])
            .env(STORE, redis.url())
            .env(JOURNAL, journal.path());
        App::of(app).await
    };
    let kill = |app: &App| write(&open(journal.path()), format!("kill {}", app.id()));
    let charged = killing_apps(RULES, start, kill).await;

    let runs = read(journal.path());
    let (mut started, mut most) = (0, 0);
    for charged in &charged.charged {
        let runs = &runs[&charged.key];
        assert_one_at_a_time(&charged.key, runs);
        let answer = charged.answer.as_ref().expect("an answer");
        let answered = runs.iter().find(|run| run.id() == answer.id());
        assert!(answered.is_some_and(|run| run.ended), "{}", charged.key);
        started += runs.len();
        most = most.max(runs.len());
    }
    println!(
        "Redis, run-again: {} kills of an app, {started} runs, at most {most} of a key, {charged}",
        kills(8)
    );
    assert!(most > 1, "nothing was taken over");
}

/// The attempt number and the fence grow, and a run starts when the one before it has ended or died. (One that died before its
/// handler started is not written down, and counts.)
fn assert_one_at_a_time(key: &str, runs: &[Run]) {
    for pair in runs.windows(2) {
        let (run, next) = (&pair[0], &pair[1]);
        assert!(run.attempt < next.attempt, "{key}: {runs:?}");
        assert!(run.fence < next.fence, "{key}: {runs:?}");
        // A run is far shorter than that. If it was held up so long, it wasn't renewed.
        let held_up = next.start - run.start > LEASE.as_millis() / 3 * 2;
        let over = run.over.expect("a run that ended or died");
        assert!(over <= next.start || held_up, "{key}: {runs:?}");
    }
}

/// A run of the handler, as the journal has it. Times are milliseconds of the machine's monotonic clock.
#[derive(Debug)]
struct Run {
    attempt: u32,
    fence: u64,
    process: u32,
    start: u128,
    /// When it ended, or its process was killed.
    over: Option<u128>,
    ended: bool,
}

impl Run {
    /// What the handler calls it.
    fn id(&self) -> String {
        self.attempt.to_string()
    }
}

/// The runs of each key, in the order in which they started.
fn read(journal: &Path) -> BTreeMap<String, Vec<Run>> {
    let mut all: BTreeMap<String, Vec<Run>> = BTreeMap::new();
    let journal = std::fs::read_to_string(journal).expect("a journal");
    for line in journal.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u128>().expect("a number");
        let small = |at: usize| u32::try_from(number(at)).expect("a small number");
        match words[1] {
            "kill" => {
                let of_process = all.values_mut().flatten();
                for run in of_process.filter(|run| run.process == small(2)) {
                    run.over.get_or_insert(number(0));
                }
            }
            "start" => all.entry(words[2].to_owned()).or_default().push(Run {
                attempt: small(3),
                fence: u64::try_from(number(4)).expect("a fence"),
                process: small(5),
                start: number(0),
                over: None,
                ended: false,
            }),
            "end" => {
                let runs = all.get_mut(words[2]).expect("its start");
                let run = runs.iter_mut().find(|run| run.attempt == small(3));
                let run = run.expect("its start");
                // The kill is written down before it is done.
                run.over = Some(number(0));
                run.ended = true;
            }
            word => panic!("what is {word}?"),
        }
    }
    all
}

/// Not a test: the app. It ends with its input, which ends with its parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the test starts it as a process of its own"]
async fn the_app() {
    let (Ok(store), Ok(journal)) = (env::var(STORE), env::var(JOURNAL)) else {
        return;
    };
    let store = RedisStore::new(redis::Client::open(store).expect("a client"));
    let layer = IdempotencyLayer::new(store, ScopeBy::single_tenant())
        .require_key()
        .with_lease(LEASE)
        .with_takeover(Takeover::RunAgain);
    let app = Router::new()
        .route("/charges", post(run))
        .route_layer(layer)
        .with_state(Arc::new(open(Path::new(&journal))));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    println!("\nlistening on http://{address}");
    let mut nothing = [0];
    tokio::select! {
        served = async { axum::serve(listener, app).await } => served.expect("a server"),
        end = async { stdin().read(&mut nothing).await } => assert_eq!(end.expect("the end"), 0),
    }
}

async fn run(
    State(journal): State<Arc<File>>,
    context: IdempotencyContext,
) -> (StatusCode, Json<Value>) {
    let (key, attempt) = (context.key().as_str(), context.attempt());
    let (fence, process) = (context.fence(), process::id());
    write(&journal, format!("start {key} {attempt} {fence} {process}"));
    random_moment_within(Duration::from_millis(300)).await;
    write(&journal, format!("end {key} {attempt}"));
    let answer = json!({ "id": attempt.to_string() });
    (StatusCode::CREATED, Json(answer))
}

fn open(journal: &Path) -> File {
    let file = File::options().append(true).open(journal);
    file.expect("a journal")
}

/// A line at once, behind all that others wrote.
fn write(mut journal: &File, event: String) {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::try_from(now).expect("a time").as_millis();
    let line = format!("{now} {event}\n");
    journal.write_all(line.as_bytes()).expect("a line");
}
