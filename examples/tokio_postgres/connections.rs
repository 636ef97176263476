use std::{
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::{Client, Config, NoTls, types::ToSql};
use tower_idempotency::{StoreError, StoreErrorKind};

use crate::error::failed;

/// A pool in few lines, with the default that a transaction store needs: a connection that is dropped is closed, which
/// rolls back, and only what is known to be clean is given back. Most pools do it the other way round. With one of those,
/// detach what a drop must close (deadpool: `Object::take`). Without TLS here.
#[derive(Clone, Debug)]
pub(crate) struct Connections(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Config,
    idle: Mutex<Vec<Client>>,
    permits: Arc<Semaphore>,
}

impl Connections {
    /// At most `limit` connections at a time. Each claim has one for as long as its handler runs.
    pub(crate) fn new(mut config: Config, limit: usize) -> Self {
        // A host that has gone is noticed, too.
        config.connect_timeout(Duration::from_secs(5));
        config.keepalives_idle(Duration::from_secs(30));
        config.tcp_user_timeout(Duration::from_secs(30));
        Self(Arc::new(Inner {
            config,
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(limit)),
        }))
    }

    pub(crate) async fn get(&self) -> Result<Connection, StoreError> {
        let permit = Arc::clone(&self.0.permits).acquire_owned().await;
        let permit = permit.map_err(|closed| StoreError::new(StoreErrorKind::Other, closed))?;
        let idle = self.idle().pop().filter(|client| !client.is_closed());
        let client = match idle {
            Some(client) => client,
            None => {
                let (client, connection) = self.0.config.connect(NoTls).await.map_err(failed)?;
                // If this task ends with an error, the client's calls tell.
                tokio::spawn(connection);
                client
            }
        };
        Ok(Connection {
            client,
            pool: self.clone(),
            _permit: permit,
        })
    }

    pub(crate) async fn batch_execute(&self, statements: &str) -> Result<(), StoreError> {
        let connection = self.get().await?;
        connection.batch_execute(statements).await.map_err(failed)?;
        connection.reuse();
        Ok(())
    }

    pub(crate) async fn execute(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, StoreError> {
        let connection = self.get().await?;
        let rows = connection.execute(statement, parameters).await;
        let rows = rows.map_err(failed)?;
        connection.reuse();
        Ok(rows)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Client>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection. Dropped, it is closed.
pub(crate) struct Connection {
    client: Client,
    pool: Connections,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Gives it back, with no transaction open.
    pub(crate) fn reuse(self) {
        self.pool.idle().push(self.client);
    }

    /// Rolls back and gives it back; or closes it, if it doesn't answer.
    pub(crate) async fn roll_back(self) {
        if self.batch_execute("ROLLBACK").await.is_ok() {
            self.reuse();
        }
    }
}

impl Deref for Connection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
