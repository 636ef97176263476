//! The connection to the server or cluster: made at first use, shared by all calls, replaced when it is spoilt.
//!
//! The driver's `ConnectionManager` doesn't replace a connection that has stopped answering, or leads to a server that is a
//! replica by now, and hands the error of a failed attempt to a call that comes after the outage.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, RedisError, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::{ClusterClient, NodeAddress},
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo},
    io::tcp::TcpSettings,
};
use tokio::time::{Instant, timeout};

use super::error::{is_lost, is_read_only};

/// How long an attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long a server may take to answer before its connection counts as lost. Longer than the layer waits for a call: while
/// the connection lives, what is sent to take a claim back can't overtake the claim.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How often a server that only reads is a reason to connect anew, to what may be another server by then.
const RECONNECT: Duration = Duration::from_secs(1);

/// How long the other machine may leave data unacknowledged. A server that hangs acknowledges them, a machine that is gone doesn't.
#[cfg(target_os = "linux")]
const ACKNOWLEDGE_LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Connections {
    target: Target,
    kept: Mutex<Kept>,
    /// One attempt at a time.
    connecting: tokio::sync::Mutex<()>,
}

/// What is sent at once.
#[derive(Clone, Copy)]
pub(super) enum Message<'a> {
    Command(&'a Cmd),
    /// Commands that belong to one key.
    Together(&'a Pipeline),
    /// A command to each master of a cluster, whose answers come as pairs of address and answer. To a server, as any command.
    ToMasters(&'a Cmd),
    /// Commands to the master of a cluster that answered under this address, each with an answer or an error of its own. To a
    /// server, whatever the address.
    ToMaster(&'a str, &'a Pipeline),
}

/// An error, and whether it may be none on another connection.
struct Failed {
    error: RedisError,
    is_lost: bool,
}

impl Failed {
    fn for_good(error: RedisError) -> Self {
        Self {
            error,
            is_lost: false,
        }
    }
}

enum Target {
    Server(Client),
    Cluster(Box<ClusterClient>),
}

#[derive(Default)]
struct Kept {
    connection: Option<Connection>,
    /// How many there were before.
    number: u64,
    made: Option<Instant>,
    /// When the last attempt that failed began, and why it did.
    failed: Option<(Instant, RedisError)>,
}

#[derive(Clone)]
enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connections {
    pub(super) fn to_server(client: &Client) -> Self {
        Self::to(Target::Server(with_tcp_settings(client)))
    }

    pub(super) fn to_cluster(client: ClusterClient) -> Self {
        Self::to(Target::Cluster(Box::new(client)))
    }

    fn to(target: Target) -> Self {
        Self {
            target,
            kept: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.target, Target::Cluster(_))
    }

    /// Asks each master of a cluster: pairs of address and answer. A server's address is empty.
    pub(super) async fn ask_masters(
        &self,
        command: &Cmd,
    ) -> Result<Vec<(String, Value)>, RedisError> {
        let answer: Value = self.send(Message::ToMasters(command)).await?;
        let answer = answer.extract_error()?;
        if self.is_cluster() {
            return Ok(redis::from_redis_value(answer)?);
        }
        Ok(vec![(String::new(), answer)])
    }

    /// Sends on the connection, and once more on another if it was lost meanwhile: that a server was restarted shows only when
    /// it is asked. Whatever is sent here may be sent again, as the driver itself does in a cluster.
    pub(super) async fn send<T: FromRedisValue>(
        &self,
        message: Message<'_>,
    ) -> Result<T, RedisError> {
        let answer = match self.value(message).await {
            Err(Failed { is_lost: true, .. }) => self.value(message).await,
            answer => answer,
        };
        Ok(redis::from_redis_value(
            answer.map_err(|failed| failed.error)?,
        )?)
    }

    /// Sends on the connection, and not again: for what may have another answer the second time.
    pub(super) async fn send_once<T: FromRedisValue>(
        &self,
        message: Message<'_>,
    ) -> Result<T, RedisError> {
        let answer = self.value(message).await;
        Ok(redis::from_redis_value(
            answer.map_err(|failed| failed.error)?,
        )?)
    }

    async fn value(&self, message: Message<'_>) -> Result<Value, Failed> {
        let (number, connection) = self.connection().await.map_err(Failed::for_good)?;
        // A cluster's own retries go on for minutes.
        let answer = match timeout(ANSWER_LIMIT, connection.send(message)).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(std::io::Error::from(elapsed).into()),
        };
        answer.map_err(|error| {
            let is_lost = if is_read_only(&error) {
                self.drop_connection(number, RECONNECT)
            } else if is_lost(&error) || error.is_io_error() {
                self.drop_connection(number, Duration::ZERO);
                is_lost(&error)
            } else {
                false
            };
            Failed { error, is_lost }
        })
    }

    async fn connection(&self) -> Result<(u64, Connection), RedisError> {
        if let Some(kept) = self.kept().current() {
            return Ok(kept);
        }
        let asked = Instant::now();
        let _turn = self.connecting.lock().await;
        {
            let kept = self.kept();
            if let Some(current) = kept.current() {
                return Ok(current);
            }
            // Whoever was there before an attempt began need not make another one.
            if let Some((began, error)) = &kept.failed
                && *began >= asked
            {
                return Err(error.clone());
            }
        }
        let began = Instant::now();
        let made = self.target.connect().await;
        let mut kept = self.kept();
        match made {
            Ok(connection) => {
                kept.number += 1;
                kept.made = Some(Instant::now());
                kept.failed = None;
                kept.connection = Some(connection.clone());
                Ok((kept.number, connection))
            }
            Err(error) => {
                kept.failed = Some((began, error.clone()));
                Err(error)
            }
        }
    }

    /// The next call makes another one, unless somebody has, or the connection is younger than that. Tells whether it is gone.
    fn drop_connection(&self, number: u64, age: Duration) -> bool {
        let mut kept = self.kept();
        // A cluster's connection replaces those to its nodes by itself.
        if self.is_cluster() {
            return false;
        }
        if kept.number == number && kept.made.is_none_or(|made| made.elapsed() >= age) {
            kept.connection = None;
        }
        kept.number != number || kept.connection.is_none()
    }

    /// Nothing panics while it is held.
    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    async fn send(self, message: Message<'_>) -> Result<Value, RedisError> {
        match (self, message) {
            (Self::Server(mut server), Message::Command(command) | Message::ToMasters(command)) => {
                command.query_async(&mut server).await
            }
            (Self::Server(mut server), Message::Together(commands)) => {
                commands.query_async(&mut server).await
            }
            (Self::Cluster(mut cluster), Message::Command(command)) => {
                command.query_async(&mut cluster).await
            }
            (Self::Cluster(mut cluster), Message::Together(commands)) => {
                commands.query_async(&mut cluster).await
            }
            (Self::Cluster(mut cluster), Message::ToMasters(command)) => {
                let masters = (MultipleNodeRoutingInfo::AllMasters, None);
                let routing = RoutingInfo::MultiNode(masters);
                cluster.route_command(command.clone(), routing).await
            }
            (Self::Server(mut server), Message::ToMaster(_, commands)) => {
                let answers = server.req_packed_commands(commands, 0, commands.len());
                answers.await.map(Value::Array)
            }
            (Self::Cluster(mut cluster), Message::ToMaster(address, commands)) => {
                let address: NodeAddress = address.parse()?;
                let (host, port) = (address.host().to_owned(), address.port());
                let (count, node) = (
                    commands.len(),
                    SingleNodeRoutingInfo::ByAddress { host, port },
                );
                let answers = cluster.route_pipeline(commands.clone(), 0, count, node);
                answers.await.map(Value::Array)
            }
        }
    }
}

impl Kept {
    fn current(&self) -> Option<(u64, Connection)> {
        Some((self.number, self.connection.clone()?))
    }
}

impl Target {
    async fn connect(&self) -> Result<Connection, RedisError> {
        match self {
            Self::Server(client) => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(CONNECT_LIMIT))
                    .set_response_timeout(None);
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                connection.await.map(Connection::Server)
            }
            Self::Cluster(client) => {
                match timeout(CONNECT_LIMIT, client.get_async_connection()).await {
                    Ok(connection) => connection.map(Connection::Cluster),
                    Err(elapsed) => Err(std::io::Error::from(elapsed).into()),
                }
            }
        }
    }
}

/// Small commands must not wait for each other's acknowledgement, and a machine that is gone is to be noticed.
fn with_tcp_settings(client: &Client) -> Client {
    let info = client.get_connection_info().clone();
    let settings: TcpSettings = info.tcp_settings().clone().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = match settings.user_timeout() {
        Some(_) => settings,
        None => settings.set_user_timeout(ACKNOWLEDGE_LIMIT),
    };
    Client::open(info.set_tcp_settings(settings)).unwrap_or_else(|_| client.clone())
}

impl fmt::Debug for Connections {
    /// Without the addresses, which may have passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_cluster() {
            "cluster"
        } else {
            "server"
        })
    }
}
