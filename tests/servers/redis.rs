//! Redis servers, and those of Valkey.

use std::{
    io::{Read, Write},
    net::TcpStream,
    ops::Deref,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use redis::{Client, FromRedisValue, RedisResult};

use super::{
    external,
    place::directory_of,
    port::Port,
    process::{Process, Program, until},
    server::Server,
};

const INSTALL: &str = r#"printf '%s\n' "$SETTINGS" >redis.conf"#;
const RUN: &str = r#"exec "$NAME-server" "$PWD/redis.conf" --port "$PORT""#;
/// Nothing outlives the process. A replica doesn't wait for others before it is sent what it needs.
const SETTINGS: &str = "
bind 127.0.0.1
pidfile pid
save \"\"
appendonly no
repl-diskless-sync yes
repl-diskless-sync-delay 0
";
/// Settings of a server that keeps what it acknowledged when it is killed.
pub const DURABLE: [&str; 2] = ["appendonly yes", "appendfsync always"];

/// The Redis server of this test binary; or that of the environment variable `TEST_REDIS_URL`.
///
/// The first call starts it, and blocks its thread meanwhile. Its tests share it: each has keys of its own.
pub fn redis() -> Option<&'static Redis> {
    static SHARED: OnceLock<Option<Redis>> = OnceLock::new();
    SHARED
        .get_or_init(|| named("TEST_REDIS_URL").or_else(Redis::start))
        .as_ref()
}

/// The Valkey server of this test binary; or that of the environment variable `TEST_VALKEY_URL`.
pub fn valkey() -> Option<&'static Redis> {
    static SHARED: OnceLock<Option<Redis>> = OnceLock::new();
    SHARED
        .get_or_init(|| named("TEST_VALKEY_URL").or_else(|| Redis::start_valkey(&[])))
        .as_ref()
}

fn named(variable: &str) -> Option<Redis> {
    let server = Server::named(external::url(variable)?);
    Some(Redis { name: "", server })
}

/// A Redis or Valkey server. A private one ends and leaves nothing when it is dropped.
#[derive(Debug)]
pub struct Redis {
    /// Of its kind; empty if the environment names it.
    name: &'static str,
    server: Server,
}

impl Redis {
    /// Starts a private server. `None` if there is no Redis on this machine.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts a private server with settings of `redis.conf`, such as `maxmemory 4mb` or those that are [`DURABLE`].
    pub fn start_with(settings: &[&str]) -> Option<Self> {
        Self::started("redis", settings).or_else(|| external::missing("Redis"))
    }

    /// Starts a private Valkey server with settings.
    pub fn start_valkey(settings: &[&str]) -> Option<Self> {
        let server = Self::started("valkey", settings);
        server.or_else(|| external::missing_as_ever("Valkey"))
    }

    pub(super) fn started(name: &'static str, settings: &[&str]) -> Option<Self> {
        let program = format!("{name}-server");
        let programs = directory_of(&[&program])?;
        static TOLD: Mutex<Vec<&str>> = Mutex::new(Vec::new());
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.contains(&name) {
            told.push(name);
            external::tell(&external::version_of(&programs.join(program)));
        }
        drop(told);
        let process = Process::start(&Program {
            name,
            user: name,
            directories: vec![programs],
            install: INSTALL,
            run: RUN,
            stop: "KILL",
            settings: format!("{SETTINGS}{}", settings.join("\n")),
            port: Port::free_for_redis,
            is_ready,
        });
        let url = format!("redis://127.0.0.1:{}", process.port());
        let server = Server::started(url, process);
        Some(Self { name, server })
    }

    /// Executes a command on a connection of its own. Blocks the thread.
    pub fn run<T: FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        const LIMIT: Duration = Duration::from_secs(10);
        let mut connection = Client::open(self.url())?.get_connection_with_timeout(LIMIT)?;
        connection.set_read_timeout(Some(LIMIT))?;
        let (name, arguments) = command.split_first().expect("a command");
        redis::cmd(name).arg(arguments).query(&mut connection)
    }

    /// Starts a private server of the same kind that has all that this private one has, and follows it.
    pub fn start_replica(&self) -> Self {
        let replica = Self::started(self.name, &[]).expect("the same program");
        replica.follow(self);
        replica
    }

    /// Becomes a replica of that one. Blocks the thread until it has all that the master has.
    pub fn follow(&self, master: &Self) {
        let port = master.port().to_string();
        let told = self.run(&["REPLICAOF", "127.0.0.1", &port]);
        let () = told.expect("to be told");
        until("a replica", || self.has_caught_up());
    }

    /// Blocks the thread until this replica has what its master has now.
    pub fn catch_up_with(&self, master: &Self) {
        let offset = |server: &Self, name| {
            let info = server.info("replication");
            let mut lines = info.lines();
            let offset = lines.find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
            offset.unwrap_or_default()
        };
        let written = offset(master, "master_repl_offset:");
        until("what the master wrote", || {
            offset(self, "slave_repl_offset:") >= written
        });
    }

    /// Becomes a master, whatever became of the one that it followed.
    pub fn promote(&self) {
        let told = self.run(&["REPLICAOF", "NO", "ONE"]);
        told.expect("to be told")
    }

    /// Whether this replica got all from its master.
    pub(super) fn has_caught_up(&self) -> bool {
        self.info("replication").contains("master_link_status:up")
    }

    pub(super) fn info(&self, section: &str) -> String {
        self.run(&["INFO", section]).unwrap_or_default()
    }
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// It writes its own file when it listens; what answers on the port alone might be another server.
fn is_ready(process: &Process) -> bool {
    let file = process.directory().join("pid");
    let pid = std::fs::read_to_string(file).unwrap_or_default();
    let own = pid.trim() == process.pid().as_raw_nonzero().to_string();
    own && answers(process.port()).unwrap_or(false)
}

/// Whether it has loaded its data.
fn answers(port: u16) -> std::io::Result<bool> {
    const PONG: &[u8] = b"+PONG";
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.set_read_timeout(Some(Duration::from_secs(1)))?;
    server.write_all(b"PING\r\n")?;
    let mut start = [0; PONG.len()];
    server.read_exact(&mut start)?;
    Ok(start == PONG)
}
