use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use redis::{Client, Cmd, FromRedisValue, RedisError, Value, cluster::ClusterClient};

use super::{
    connections::{Connections, Message},
    error::{failed, is_no_script},
    eviction::refuse_eviction,
    record::{Stored, millis, settled, unfenced},
    script::{Call, FORGET, READ, RELEASE, RENEW, RESERVE, SETTLE, Script},
};
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind,
    store::{Claim, Record, Reservation, Steps, Store, StoreKind, Takeover, Terms},
};

/// A lease store in Redis (6.2 or later) or Valkey, on one server or a cluster.
///
/// Each call is a script: one round trip, decided and done in one step. A record is one string, which expires by itself; no
/// connection is held while a handler runs. Time is the server's, in milliseconds: shorter leases and retentions are rounded up.
///
/// ```no_run
/// # async fn make() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_idempotency::RedisStore;
///
/// let store = RedisStore::new(redis::Client::open("redis://localhost")?);
/// store.check().await?;
/// # Ok(())
/// # }
/// ```
///
/// # What it can lose
///
/// A claim protects its key for as long as the server remembers it. A server without persistence forgets everything when it
/// restarts; with `appendonly yes` it forgets up to the last second, unless `appendfsync always` is set too; and a replica that is
/// promoted forgets what had not reached it, which [`with_replicas`](Self::with_replicas) makes less likely. A key that is forgotten
/// is new: its operation runs again. Where that must not happen, use a store in a SQL database.
///
/// # The server
///
/// - `maxmemory-policy noeviction`, which is the default: any other may drop records before their time, and is [refused](Self::check).
///   A server that is full refuses new keys with [`Full`](StoreErrorKind::Full), and takes the notes and responses of those that it has.
/// - Memory: about 280 bytes for each record, and its response.
/// - The user needs `+evalsha +eval +getrange +get +set +append +del +pexpire +pttl +time +ping` on `~prefix:*`
///   (`~tower-idempotency:*` by default), `+config|get` for the check (without it the policy is taken on trust, with an event),
///   `+wait` for replicas, `+cluster|slots` on a cluster, and `+select` for a numbered database.
/// - [`purge_expired`](Store::purge_expired) does nothing, and no [`Purger`](crate::Purger) is needed.
///
/// # Listing
///
/// [`ListRecords`](crate::store::ListRecords) walks over all names of the server, or of each master of a cluster, in steps of 500, and
/// reads the heads of those that are records. Without an order; a record may be given or counted twice when the server resizes its
/// table meanwhile, and missed only if its slot moves to another master. Each page is about 100 000 names at most. A cursor is good
/// until a server is restarted or another one takes over. The user needs `+info +scan +strlen` as well, and `+cluster|info` on a
/// cluster.
///
/// # The connection
///
/// The store makes one of its own when it is first used, shares it among all calls, and makes a new one when it is lost, doesn't
/// answer for 30 seconds, or leads to a server that has become a replica. (Calls that wait for replicas share another one.) What
/// failed because the connection was lost is sent once more, since every call may be repeated; not so
/// [`forget`](Store::forget), whose answer would be another one. TLS, the user and the database are the client's.
#[derive(Clone)]
pub struct RedisStore {
    pub(super) connections: Arc<Connections>,
    /// For what waits for replicas, which holds up all that is sent behind it.
    waiting: Arc<Connections>,
    pub(super) prefix: String,
    replicas: Option<Replicas>,
    /// Whether the server's eviction policy is known to be right, or doesn't matter.
    checked: Arc<AtomicBool>,
}

/// How many replicas must have what was written, and how long they may take.
#[derive(Clone, Copy, Debug)]
struct Replicas {
    count: u32,
    limit: Duration,
}

impl RedisStore {
    /// A store on one server, or on whatever serves the client's address: behind a name that follows a failover, it does too.
    #[must_use]
    pub fn new(client: Client) -> Self {
        let connections = || Connections::to_server(&client);
        Self::over([connections(), connections()])
    }

    /// A store on a cluster, over whose nodes the records are spread.
    ///
    /// The client should have a `response_timeout` (a second or two), so that a node that hangs is noticed.
    #[must_use]
    pub fn cluster(client: ClusterClient) -> Self {
        let connections = || Connections::to_cluster(client.clone());
        Self::over([connections(), connections()])
    }

    fn over(connections: [Connections; 2]) -> Self {
        let [connections, waiting] = connections.map(Arc::new);
        Self {
            connections,
            waiting,
            prefix: "tower-idempotency".to_owned(),
            replicas: None,
            checked: Arc::default(),
        }
    }

    /// What the names of its records begin with (default: `tower-idempotency`). A record is the string `prefix:{digest in hex}`.
    ///
    /// # Panics
    ///
    /// If it has a brace: those tell a cluster which part of a name decides about the node.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        assert!(
            !self.prefix.contains(['{', '}']),
            "with_prefix: no braces, which belong to the part that spreads the records over a cluster"
        );
        self
    }

    /// Waits until this many replicas have a claim before its handler runs, a note before its step is over, and a response before
    /// it counts as saved (default: none).
    ///
    /// A claim that they don't have within `limit` is given back, and the request gets 503 `store_unavailable`. A response that
    /// they don't have is the caller's all the same, and sent again in the background. What a failover loses is then what the
    /// new master didn't have, although enough others did: it is less likely, not impossible.
    ///
    /// Such calls have a connection of their own, on which each is held up by those before it: while a replica hangs, claims take
    /// up to `limit` one after the other. Renewals, replays of waiters and what an operator asks are not held up.
    ///
    /// # Panics
    ///
    /// If the number or the limit is zero, or the limit above ten seconds.
    #[must_use]
    pub fn with_replicas(mut self, count: u32, limit: Duration) -> Self {
        assert!(count > 0, "with_replicas: at least one replica");
        assert!(
            !limit.is_zero() && limit <= LONGEST_WAIT,
            "with_replicas: the limit must be above zero and at most {LONGEST_WAIT:?}"
        );
        self.replicas = Some(Replicas { count, limit });
        self
    }

    /// Accepts a server that may evict records before their time: a retry then runs the operation again.
    #[must_use]
    pub fn allow_eviction(mut self) -> Self {
        self.checked = Arc::new(AtomicBool::new(true));
        self
    }

    /// Looks whether the server keeps records for their time, so that a service finds out at its start. Otherwise the first
    /// claim does.
    ///
    /// The server's `maxmemory-policy` must be `noeviction`, on each master of a cluster. Where the server doesn't tell, that is an
    /// event (feature `tracing`).
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    ///
    /// # Errors
    ///
    /// If the server evicts, unless [that is allowed](Self::allow_eviction), or can't be asked.
    pub async fn check(&self) -> Result<(), StoreError> {
        if !self.checked.load(Ordering::Relaxed) {
            refuse_eviction(&self.connections).await?;
            self.checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The name of a record, as [`scan`](super::scan) reads it. The braces are for a prefix that has none: the digest alone decides about a cluster's node.
    pub(super) fn name(&self, key: &RecordKey) -> String {
        let digest = blake3::Hash::from_bytes(*key.as_bytes()).to_hex();
        format!("{}:{{{digest}}}", self.prefix)
    }

    pub(super) async fn call<T: FromRedisValue>(
        &self,
        script: &'static Script,
        key: &RecordKey,
        arguments: &[&[u8]],
    ) -> Result<T, StoreError> {
        let name = self.name(key);
        let call = Call::new(script, &name, arguments);
        let answer = self.send(&call.by_digest()).await;
        match answer {
            Err(error) if is_no_script(&error) => self.send(&call.by_text()).await,
            answer => answer,
        }
        .map_err(failed)
    }

    /// Likewise, and waits for the replicas: the second result tells whether enough of them have what was written.
    pub(super) async fn call_replicated<T: FromRedisValue>(
        &self,
        script: &'static Script,
        key: &RecordKey,
        arguments: &[&[u8]],
    ) -> Result<(T, Result<(), StoreError>), StoreError> {
        let Some(replicas) = self.replicas else {
            let answer = self.call(script, key, arguments).await?;
            return Ok((answer, Ok(())));
        };
        let name = self.name(key);
        let call = Call::new(script, &name, arguments);
        let answer = match self.send_and_wait(&call.by_digest(), replicas).await {
            Err(error) if is_no_script(&error) => {
                self.send_and_wait(&call.by_text(), replicas).await
            }
            answer => answer,
        };
        let (answer, count): (T, u32) = answer.map_err(failed)?;
        Ok((answer, replicas.have_it(count)))
    }

    async fn send<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        self.connections.send(Message::Command(command)).await
    }

    async fn send_and_wait<T: FromRedisValue>(
        &self,
        command: &Cmd,
        replicas: Replicas,
    ) -> Result<(T, u32), RedisError> {
        let mut both = redis::pipe();
        both.add_command(command.clone());
        both.cmd("WAIT")
            .arg(replicas.count)
            .arg(millis(replicas.limit));
        self.waiting.send(Message::Together(&both)).await
    }

    async fn settle(
        &self,
        claim: &Claim,
        response: Option<&SavedResponse>,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let record = settled(claim, response, retention);
        let retention = millis(retention).to_string();
        let arguments = [record.as_slice(), retention.as_bytes()];
        let (answer, replicated) = self
            .call_replicated(&SETTLE, claim.key(), &arguments)
            .await?;
        was_its_own(answer).and(replicated)
    }

    async fn read(&self, key: &RecordKey) -> Result<Option<Stored>, StoreError> {
        let found: Option<(i64, Vec<u8>)> = self.call(&READ, key, &[]).await?;
        found
            .map(|(left, record)| Stored::read(left, record))
            .transpose()
    }
}

impl Replicas {
    fn have_it(self, count: u32) -> Result<(), StoreError> {
        if count >= self.count {
            return Ok(());
        }
        let message = format!("{count} replicas have it, of {} that must", self.count);
        Err(StoreError::new(StoreErrorKind::Other, message))
    }
}

/// `WAIT` holds up the connection.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// What the scripts answer that write for a claim.
pub(super) fn was_its_own(answer: bool) -> Result<(), StoreError> {
    answer.then_some(()).ok_or(StoreErrorKind::LostClaim.into())
}

#[async_trait]
impl Store for RedisStore {
    async fn reserve(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> Result<Reservation, StoreError> {
        self.check().await?;
        let (nonce, claim) = (terms.nonce(), unfenced(fingerprint, terms));
        let life = millis(terms.lease()).saturating_add(millis(terms.retention()));
        let life = life.to_string();
        let arguments: [&[u8]; 3] = [&claim, life.as_bytes(), b"takeover"];
        let arguments = match terms.takeover() {
            Takeover::Refuse => &arguments[..2],
            Takeover::RunAgain => &arguments,
        };
        let (answer, replicated) = self.call_replicated(&RESERVE, key, arguments).await?;
        if let Value::Int(fence) = answer {
            replicated?;
            let fence = fence.unsigned_abs();
            let claim = Claim::new(*key, *fingerprint, nonce, 1, fence);
            return Ok(Reservation::Acquired(claim));
        }
        let found = redis::from_redis_value(answer).map_err(|error| failed(error.into()));
        let (left, record): (i64, Vec<u8>) = found?;
        let stored = Stored::read(left, record)?;
        if stored.is_claim_of(nonce, fingerprint) {
            replicated?;
            return Ok(Reservation::Acquired(stored.claim(key)));
        }
        stored.answer(fingerprint)
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        let (nonce, lease) = (claim.nonce(), millis(lease).to_string());
        let arguments: [&[u8]; 2] = [nonce.as_bytes(), lease.as_bytes()];
        was_its_own(self.call(&RENEW, claim.key(), &arguments).await?)
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &SavedResponse,
        retention: Duration,
    ) -> Result<(), StoreError> {
        self.settle(claim, Some(response), retention).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        let nonce = claim.nonce();
        was_its_own(
            self.call(&RELEASE, claim.key(), &[nonce.as_bytes()])
                .await?,
        )
    }

    async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
        self.settle(claim, None, retention).await
    }

    async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        let found = self.read(key).await?;
        found.map(|stored| stored.record()).transpose()
    }

    async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
        // Sent again because its answer was lost, it would find nothing and say so. Hence a look at the connection first, which
        // may have been lost since it was last used.
        self.ping().await?;
        let name = self.name(key);
        let call = Call::new(&FORGET, &name, &[]);
        let once =
            async |command: Cmd| self.connections.send_once(Message::Command(&command)).await;
        match once(call.by_digest()).await {
            Err(error) if is_no_script(&error) => once(call.by_text()).await,
            forgotten => forgotten,
        }
        .map_err(failed)
    }

    /// Nothing: the server removes what has expired by itself.
    async fn purge_expired(&self, _limit: u32) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.send(&redis::cmd("PING")).await.map_err(failed)
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Lease
    }

    fn steps(&self) -> Option<&dyn Steps> {
        Some(self)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("connections", &self.connections)
            .field("prefix", &self.prefix)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
