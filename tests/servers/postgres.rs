//! Postgres servers.

use std::{
    io::{Read, Write},
    net::TcpStream,
    ops::Deref,
    sync::{Once, OnceLock},
    time::Duration,
};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use super::{
    external,
    place::directory_of,
    port::Port,
    process::{Process, Program},
    server::Server,
    url,
};

const INSTALL: &str = r#"
initdb -D data -U postgres -A trust -E UTF8 --no-locale --no-sync --no-instructions --wal-segsize=4 &&
printf '%s\n' "$SETTINGS" >>data/postgresql.conf
"#;
const RUN: &str = r#"exec postgres -D data -p "$PORT""#;
/// What was committed survives the end of the processes, as ever; only the end of the machine would lose it.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
shared_buffers = 64MB
fsync = off
wal_level = minimal
max_wal_senders = 0
";

/// The Postgres server of this test binary; or that of the environment variable `TEST_POSTGRES_URL`.
///
/// The first call starts it, and blocks its thread meanwhile.
pub fn postgres() -> Option<&'static Postgres> {
    static SHARED: OnceLock<Option<Postgres>> = OnceLock::new();
    let start = || match external::url("TEST_POSTGRES_URL") {
        Some(url) => Some(Postgres(Server::named(url))),
        None => Postgres::start(),
    };
    SHARED.get_or_init(start).as_ref()
}

/// A Postgres server. A private one ends and leaves nothing when it is dropped.
#[derive(Debug)]
pub struct Postgres(Server);

impl Postgres {
    /// Starts a private server. `None` if there is no Postgres on this machine.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts a private server with settings of `postgresql.conf`, such as `max_connections = 5`.
    pub fn start_with(settings: &[&str]) -> Option<Self> {
        let Some(programs) = directory_of(&["initdb", "postgres"]) else {
            return external::missing("Postgres");
        };
        static TOLD: Once = Once::new();
        TOLD.call_once(|| external::tell(&external::version_of(&programs.join("postgres"))));
        let process = Process::start(&Program {
            name: "postgres",
            user: "postgres",
            directories: vec![programs],
            install: INSTALL,
            run: RUN,
            // Postgres ends its own children by it. SIGKILL would leave them to themselves.
            stop: "QUIT",
            settings: format!("{SETTINGS}{}", settings.join("\n")),
            port: Port::free,
            is_ready,
        });
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", process.port());
        Some(Self(Server::started(url, process)))
    }

    /// Makes an empty database, and gives its URL.
    pub async fn database(&self) -> String {
        let name = format!("test_{}", Uuid::new_v4().simple());
        let mut connection = PgConnection::connect(self.url())
            .await
            .expect("a connection");
        let sql = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::query(sql)
            .execute(&mut connection)
            .await
            .expect("a database");
        connection.close().await.expect("a closed connection");
        url::with_database(self.url(), &name)
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

/// Its own file says so when it listens; what answers on the port alone might be another server.
fn is_ready(process: &Process) -> bool {
    let file = process.directory().join("data/postmaster.pid");
    let lines = std::fs::read_to_string(file).unwrap_or_default();
    let own = lines.lines().next() == Some(&process.pid().as_raw_nonzero().to_string());
    own && answers(process.port()).unwrap_or(false)
}

/// Whether a connection gets as far as to be ready for queries.
pub(super) fn answers(port: u16) -> std::io::Result<bool> {
    const GREETING: &[u8] = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.set_read_timeout(Some(Duration::from_secs(1)))?;
    let length = u32::try_from(GREETING.len() + 4).expect("a short greeting");
    server.write_all(&[&length.to_be_bytes(), GREETING].concat())?;
    loop {
        let mut head = [0; 5];
        server.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        match kind {
            b'Z' => return Ok(true),
            b'E' => return Ok(false),
            _ => {}
        }
        let mut rest = vec![0; u32::from_be_bytes(length).saturating_sub(4) as usize];
        server.read_exact(&mut rest)?;
    }
}
