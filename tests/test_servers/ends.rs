//! What becomes of the servers when the process ends that started them: here, this very program once more.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, test_kill_process};
use sqlx::{Connection, PgConnection};
use tokio::runtime::Runtime;

use crate::servers::{self, PgBouncer, Postgres, RedisCluster};

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
/// A line of the other process begins with it, so that it can be told from those of the test harness.
const MARK: &str = "other process: ";
const POSTGRES: &str = "TEST_POSTGRES_URL";
const MYSQL: &str = "TEST_MYSQL_URL";
const REDIS: &str = "TEST_REDIS_URL";
const VALKEY: &str = "TEST_VALKEY_URL";
const EXIT: &str = "exit\n";

#[test]
fn servers_end_with_the_process_that_is_killed() {
    assert_ends_with(|process| process.kill().expect("a process to kill"));
}

#[test]
fn servers_end_with_the_process_that_exits_without_dropping_them() {
    assert_ends_with(|process| {
        let orders = process.stdin.as_mut().expect("its input");
        orders.write_all(EXIT.as_bytes()).expect("told");
    });
}

#[test]
fn a_url_of_the_environment_is_used_instead() {
    let urls =
        [POSTGRES, MYSQL, REDIS, VALKEY].map(|variable| (variable, "kind://somewhere:1/a?b=c"));
    let mut process = other_process("tells_its_urls", &urls);
    let told = words(&mut process);
    assert_eq!(
        told,
        urls.map(|(variable, url)| format!("{variable} {url}"))
    );
    process.wait().expect("its end");
}

fn assert_ends_with(end: impl Fn(&mut Child)) {
    let mut process = other_process("starts_servers", &[]);
    let told = words(&mut process);
    let (processes, directories): (Vec<_>, Vec<_>) =
        told.iter().partition(|word| word.parse::<i32>().is_ok());
    let processes: Vec<_> = processes
        .iter()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect();
    let directories: Vec<_> = directories.iter().map(PathBuf::from).collect();
    let runs = |process: &Pid| test_kill_process(*process).is_ok();
    assert!(processes.iter().all(runs), "{told:?}");
    assert!(directories.iter().all(|path| path.exists()), "{told:?}");

    end(&mut process);
    process.wait().expect("its end");
    let start = Instant::now();
    while processes.iter().any(runs) || directories.iter().any(|path| path.exists()) {
        assert!(start.elapsed() < LIMIT, "something is left: {told:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn other_process(role: &str, environment: &[(&str, &str)]) -> Child {
    let role = format!(
        "{}::{role}",
        module_path!().rsplit("::").next().expect("a name")
    );
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", &role, "--nocapture"])
        .env_remove(POSTGRES)
        .env_remove(MYSQL)
        .env_remove(REDIS)
        .env_remove(VALKEY)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// What it tells, until it is ready; all else that it writes is passed on.
fn words(process: &mut Child) -> Vec<String> {
    let words = process.stderr.take().expect("its error output");
    let mut lines = BufReader::new(words).lines();
    let mut told = Vec::new();
    loop {
        let line = lines.next().expect("more before its end");
        let line = line.expect("a line");
        match line.strip_prefix(MARK) {
            Some("ready") => return told,
            Some(word) => told.push(word.to_owned()),
            None => eprintln!("{line}"),
        }
    }
}

fn tell(word: &str) {
    eprintln!("{MARK}{word}");
}

/// The shared servers, one that serves a connection, one that is frozen meanwhile, a PgBouncer, and a Redis cluster with a
/// frozen node.
#[test]
#[ignore = "the other process of the tests above"]
fn starts_servers() {
    let (serves, frozen) = (Postgres::start(), Postgres::start());
    let bouncer = serves
        .as_ref()
        .and_then(|server| PgBouncer::start(server, 2));
    let shared = [
        servers::postgres().map(|server| &**server),
        servers::mariadb().map(|server| &**server),
        servers::redis().map(|server| &**server),
        servers::valkey().map(|server| &**server),
    ];
    let cluster = RedisCluster::start();
    let nodes = cluster.iter().flat_map(|cluster| cluster.nodes());
    let private = [serves.as_deref(), frozen.as_deref(), bouncer.as_deref()];
    let servers = shared.into_iter().chain(private).flatten();
    for server in servers.chain(nodes.map(|node| &**node)) {
        tell(&server.process_id().to_string());
        tell(&server.directory().display().to_string());
    }
    let runtime = Runtime::new().expect("a runtime");
    let connections = [&serves, &frozen].map(|server| {
        let connection = runtime.block_on(connect(server.as_ref()?.url()));
        let (connection, process) = connection.expect("a connection");
        tell(&process.to_string());
        Some(connection)
    });
    if let Some(frozen) = &frozen {
        frozen.freeze();
    }
    if let Some(cluster) = &cluster {
        cluster.nodes()[0].freeze();
    }
    tell("ready");
    let mut order = String::new();
    std::io::stdin().read_line(&mut order).expect("an input");
    if order == EXIT {
        std::process::exit(0);
    }
    drop(connections);
}

/// A connection, and the process that serves it.
async fn connect(url: &str) -> Result<(PgConnection, i32), sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    let process = sqlx::query_scalar("SELECT pg_backend_pid()");
    let process = process.fetch_one(&mut connection).await?;
    Ok((connection, process))
}

#[test]
#[ignore = "the other process of the tests above"]
fn tells_its_urls() {
    let urls = [
        (POSTGRES, servers::postgres().map(|server| server.url())),
        (MYSQL, servers::mariadb().map(|server| server.url())),
        (REDIS, servers::redis().map(|server| server.url())),
        (VALKEY, servers::valkey().map(|server| server.url())),
    ];
    for (variable, url) in urls {
        tell(&format!("{variable} {}", url.unwrap_or_default()));
    }
    tell("ready");
}
