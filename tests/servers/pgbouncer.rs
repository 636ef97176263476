//! PgBouncer before a Postgres server.

use std::{ops::Deref, sync::Once};

use sqlx::{Connection, PgConnection, Row};

use super::{
    external,
    place::directory_of,
    port::Port,
    postgres::{Postgres, answers},
    process::{Process, Program},
    server::Server,
    url,
};

const RUN: &str = r#"
printf '%s\n' "$SETTINGS" "listen_port = $PORT" >pgbouncer.ini
exec pgbouncer pgbouncer.ini
"#;

/// A PgBouncer that pools by transaction. It ends when it is dropped.
#[derive(Debug)]
pub struct PgBouncer(Server);

impl PgBouncer {
    /// At most so many connections to each database of the server. `None` if there is no PgBouncer on this machine.
    pub fn start(postgres: &Postgres, connections: u32) -> Option<Self> {
        let Some(programs) = directory_of(&["pgbouncer"]) else {
            return external::missing("PgBouncer");
        };
        static TOLD: Once = Once::new();
        TOLD.call_once(|| external::tell(&external::version_of(&programs.join("pgbouncer"))));
        // What sqlx asks for at the start and PgBouncer doesn't keep is ignored, as its documentation tells to do.
        let settings = format!(
            "[databases]
            * = host=127.0.0.1 port={} user=postgres
            [pgbouncer]
            listen_addr = 127.0.0.1
            unix_socket_dir =
            auth_type = any
            pool_mode = transaction
            default_pool_size = {connections}
            max_client_conn = 300
            server_login_retry = 1
            ignore_startup_parameters = extra_float_digits",
            postgres.port(),
        );
        let process = Process::start(&Program {
            name: "pgbouncer",
            user: "postgres",
            directories: vec![programs],
            install: "true",
            run: RUN,
            stop: "KILL",
            settings,
            port: Port::free,
            is_ready,
        });
        let own = url::with_address(postgres.url(), &address(process.port()));
        Some(Self(Server::started(own, process)))
    }

    /// The URL of the same database, through PgBouncer.
    pub fn through(&self, database: &str) -> String {
        url::with_address(database, &address(self.port()))
    }

    /// Whether it gives its clients' prepared statements names of its own, so that they don't meet: it can from 1.21 on.
    pub async fn renames_statements(&self) -> bool {
        let connected = PgConnection::connect(self.url()).await;
        let mut connection = connected.expect("a connection");
        // Where it doesn't, another client's may be in the way, and that is an answer, too.
        if sqlx::query("SELECT 1")
            .execute(&mut connection)
            .await
            .is_err()
        {
            return false;
        }
        let names = "SELECT name FROM pg_prepared_statements";
        let row = sqlx::raw_sql(names).fetch_one(&mut connection).await;
        let name: String = row.expect("a name").get(0);
        name.starts_with("PGBOUNCER_")
    }
}

impl Deref for PgBouncer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Its log says where it listens; what answers on the port alone might be another server.
fn is_ready(process: &Process) -> bool {
    let log = std::fs::read_to_string(process.directory().join("log")).unwrap_or_default();
    let listening = format!("listening on 127.0.0.1:{}", process.port());
    log.contains(&listening) && answers(process.port()).unwrap_or(false)
}
