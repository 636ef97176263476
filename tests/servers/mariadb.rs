//! MariaDB servers.

use std::{
    io::Read,
    net::TcpStream,
    ops::Deref,
    sync::{Once, OnceLock},
    time::Duration,
};

use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use uuid::Uuid;

use super::{
    external,
    place::directory_of,
    port::Port,
    process::{Process, Program},
    server::Server,
    url,
};

/// A server that starts removes temporary tables from its temporary directory, also those of others.
const INSTALL: &str = r#"
export TMPDIR="$PWD" && printf '%s\n' "$SETTINGS" >my.cnf &&
mariadb-install-db --defaults-file="$PWD/my.cnf" --datadir="$PWD/data" \
    --auth-root-authentication-method=normal --skip-test-db
"#;
const RUN: &str = r#"export TMPDIR="$PWD"; exec mariadbd --defaults-file="$PWD/my.cnf" --datadir="$PWD/data" --port="$PORT""#;
/// What was committed survives the end of the process; only the end of the machine would lose it. The paths are relative
/// to the data directory: that of a socket may not be long.
const SETTINGS: &str = "
[mariadbd]
bind-address = 127.0.0.1
socket = socket
pid-file = pid
skip-name-resolve
skip-log-bin
character-set-server = utf8mb4
max-connections = 300
innodb-buffer-pool-size = 64M
innodb-log-file-size = 16M
innodb-flush-log-at-trx-commit = 2
innodb-flush-method = nosync
";

/// The MariaDB server of this test binary; or that of the environment variable `TEST_MYSQL_URL`, which may be MySQL.
///
/// The first call starts it, and blocks its thread meanwhile.
pub fn mariadb() -> Option<&'static MariaDb> {
    static SHARED: OnceLock<Option<MariaDb>> = OnceLock::new();
    let start = || match external::url("TEST_MYSQL_URL") {
        Some(url) => Some(MariaDb(Server::named(url))),
        None => MariaDb::start(),
    };
    SHARED.get_or_init(start).as_ref()
}

/// A MariaDB server. A private one ends and leaves nothing when it is dropped.
#[derive(Debug)]
pub struct MariaDb(Server);

impl MariaDb {
    /// Starts a private server. `None` if there is no MariaDB on this machine.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts a private server with settings of `my.cnf`, such as `innodb-lock-wait-timeout = 1`.
    pub fn start_with(settings: &[&str]) -> Option<Self> {
        let server = directory_of(&["mariadbd"]);
        let install = directory_of(&["mariadb-install-db"]);
        let (Some(server), Some(install)) = (server, install) else {
            return external::missing("MariaDB");
        };
        static TOLD: Once = Once::new();
        TOLD.call_once(|| external::tell(&external::version_of(&server.join("mariadbd"))));
        let process = Process::start(&Program {
            name: "mariadb",
            user: "mysql",
            directories: vec![server, install],
            install: INSTALL,
            run: RUN,
            stop: "KILL",
            settings: format!("{SETTINGS}{}", settings.join("\n")),
            port: Port::free,
            is_ready,
        });
        let url = format!("mysql://root@127.0.0.1:{}/mysql", process.port());
        Some(Self(Server::started(url, process)))
    }

    /// Makes an empty database, and gives its URL.
    pub async fn database(&self) -> String {
        let name = format!("test_{}", Uuid::new_v4().simple());
        let connection = MySqlConnection::connect(self.url()).await;
        let mut connection = connection.expect("a connection");
        let sql = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        let made = sqlx::query(sql).execute(&mut connection).await;
        made.expect("a database");
        connection.close().await.expect("a closed connection");
        url::with_database(self.url(), &name)
    }
}

impl Deref for MariaDb {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

/// It writes its own file when it listens; what answers on the port alone might be another server.
fn is_ready(process: &Process) -> bool {
    let file = process.directory().join("data/pid");
    let pid = std::fs::read_to_string(file).unwrap_or_default();
    let own = pid.trim() == process.pid().as_raw_nonzero().to_string();
    own && greets(process.port()).unwrap_or(false)
}

/// Whether a connection is greeted, and not refused.
fn greets(port: u16) -> std::io::Result<bool> {
    /// The version of the protocol, where an error has 255.
    const GREETING: u8 = 10;
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut start = [0; 5];
    server.read_exact(&mut start)?;
    Ok(start[4] == GREETING)
}
