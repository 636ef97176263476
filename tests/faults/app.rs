//! An application: the layer before a handler that charges, over a pool that leads through a proxy.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use sqlx::{AssertSqlSafe, Executor};
use tokio::{task::JoinHandle, time::Instant};
use tower::{Layer, Service, service_fn, util::BoxCloneSyncService};
use tower_idempotency::{
    Drain, IdempotencyLayer, RejectionKind, RequestBody, ResponseBody, ScopeBy, Tx,
    store::StoreKind,
};

use super::{
    Backend, Pool, PoolOptions,
    world::{World, new_account},
};
use crate::{
    network::{end, until},
    servers::Proxy,
    support::{
        Answer, Body, Runs,
        faulty::FaultyStore,
        handler::{Gate, response},
        post, send,
    },
};

/// Far longer than a call takes, and short enough to wait for it.
pub const CALL_LIMIT: Duration = Duration::from_secs(2);
pub const RUN_LIMIT: Duration = Duration::from_secs(2);
pub const LEASE: Duration = Duration::from_secs(6);
/// Connecting is given up before the call that needs the connection is.
const ACQUIRE_LIMIT: Duration = Duration::from_millis(1500);

/// The application. Clones are the same.
#[derive(Clone, Debug)]
pub struct App {
    pub world: World,
    pub proxy: Arc<Proxy>,
    pub pool: Pool,
    pub runs: Runs,
    pub drain: Drain,
    /// Around the store, to see its calls: nothing fails here.
    pub store: FaultyStore,
    service: BoxCloneSyncService<Request<Body>, Response<ResponseBody<Body>>, Infallible>,
}

/// The handler: what its first run does. Later ones charge and answer 201.
#[derive(Clone, Debug)]
pub struct Handler {
    pub status: u16,
    pub charges: bool,
    /// Where it waits before it charges.
    pub before: Option<Gate>,
    /// Where it waits after it has charged.
    pub after: Option<Gate>,
}

impl Handler {
    /// Charges, and answers this.
    pub fn answering(status: u16) -> Self {
        Self {
            status,
            charges: true,
            before: None,
            after: None,
        }
    }
}

impl App {
    pub fn new(world: &World, kind: StoreKind, size: u32, handler: Handler) -> Self {
        Self::with(world, kind, size, handler, |layer| layer)
    }

    /// With settings of its own.
    pub fn with(
        world: &World,
        kind: StoreKind,
        size: u32,
        handler: Handler,
        settings: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
    ) -> Self {
        Self::around(world, kind, size, settings, |runs, pool| {
            let money = match kind {
                StoreKind::Transaction => Money::InTransaction,
                _ => Money::Elsewhere {
                    direct: world.direct.clone(),
                    own: pool.clone(),
                },
            };
            let runs = runs.clone();
            service_fn(move |request: Request<RequestBody<Body>>| {
                let run = runs.add();
                let (handler, money) = (handler.clone(), money.clone());
                async move { Ok(handler.run(run, request, money).await) }
            })
        })
    }

    /// With a handler of its own, which counts its runs.
    pub fn around<S>(
        world: &World,
        kind: StoreKind,
        size: u32,
        settings: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
        service: impl FnOnce(&Runs, &Pool) -> S,
    ) -> Self
    where
        S: Service<
                Request<RequestBody<Body>>,
                Response = Response<Body>,
                Error = Infallible,
                Future: Send + 'static,
            > + Clone
            + Send
            + Sync
            + 'static,
    {
        let proxy = Proxy::start(&world.url);
        let pool = PoolOptions::new()
            .max_connections(size)
            .acquire_timeout(ACQUIRE_LIMIT)
            .test_before_acquire(false)
            .connect_lazy(proxy.url())
            .expect("a URL");
        let (runs, drain) = (Runs::default(), Drain::new());
        let store = FaultyStore::new(World::store(kind, pool.clone()));
        let layer = IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant())
            .with_drain(drain.clone())
            .with_lease(LEASE)
            .with_store_call_limit(CALL_LIMIT)
            .with_run_limit(if kind == StoreKind::Transaction {
                RUN_LIMIT
            } else {
                LEASE * 2
            })
            // For the server, a run takes at most as long as all limits together: no test comes near it.
            .with_collect_limit(Duration::from_secs(60));
        let service = service(&runs, &pool);
        Self {
            world: world.clone(),
            proxy: Arc::new(proxy),
            pool,
            runs,
            drain,
            store,
            service: BoxCloneSyncService::new(settings(layer).layer(service)),
        }
    }

    /// The answer to a request that charges this account, under a key that reads the same.
    pub async fn charge(&self, account: &str) -> Answer {
        self.ask(account, account).await
    }

    /// The same for any body.
    pub async fn ask(&self, account: &str, body: &str) -> Answer {
        end(send(&self.service, post(account, body))).await
    }

    pub fn spawn_charge(&self, account: &str) -> JoinHandle<Answer> {
        let (app, account) = (self.clone(), account.to_owned());
        tokio::spawn(async move { app.charge(&account).await })
    }

    /// What a client gets that asks again for as long as it is told that its request is in flight. On a machine with much else to
    /// do it is also told, after a while, that the store is slow; an answer that comes at once is one.
    pub async fn retry(&self, account: &str) -> Answer {
        until(|| async {
            let start = Instant::now();
            let answer = self.charge(account).await;
            let again = match answer.rejection() {
                Some(RejectionKind::InFlight) => true,
                Some(RejectionKind::StoreUnavailable) => start.elapsed() >= ACQUIRE_LIMIT,
                _ => false,
            };
            (!again).then_some(answer)
        })
        .await
    }

    /// Another request is served, and no call of the store hangs; all connections of the pool come back, and none is in a
    /// transaction.
    pub async fn assert_healthy(&self) {
        let other = new_account();
        let answer = self.retry(&other).await;
        assert_eq!(answer.status(), StatusCode::CREATED, "{answer:?}");
        assert_eq!(self.world.charges(&other).await, 1);
        end(self.store.all_calls_ended()).await;
        assert_pool_in_order(&self.world, &self.pool).await;
    }
}

/// All connections of a pool come back, and none is in a transaction.
pub async fn assert_pool_in_order(world: &World, pool: &Pool) {
    let probe = new_account();
    let size = pool.options().get_max_connections();
    let mut all = until(|| async {
        let mut all = Vec::new();
        for _ in 0..size {
            all.push(pool.acquire().await.ok()?);
        }
        Some(all)
    })
    .await;
    for connection in &mut all {
        let inserted = connection.execute(AssertSqlSafe(charge_of(&probe))).await;
        inserted.expect("a connection in order");
    }
    assert_eq!(world.charges(&probe).await, i64::from(size));
}

/// Whose connection the handler charges with.
#[derive(Clone)]
enum Money {
    InTransaction,
    Elsewhere {
        direct: Pool,
        /// The store's pool, whose connection is to be back, or the next call would open a second one.
        own: Pool,
    },
}

impl Handler {
    async fn run(
        self,
        run: usize,
        request: Request<RequestBody<Body>>,
        money: Money,
    ) -> Response<Body> {
        let extensions = request.extensions();
        let mut tx = match money {
            Money::InTransaction => Some(Tx::<Backend>::take(extensions).expect("a transaction")),
            Money::Elsewhere { .. } => None,
        };
        let account = request.headers()["idempotency-key"].to_str();
        let charge = charge_of(account.expect("an account"));
        let is_first = run == 1;
        if let Money::Elsewhere { own, .. } = &money {
            until(|| async { (own.num_idle() > 0).then_some(()) }).await;
        }
        if let Some(gate) = self.before.filter(|_| is_first) {
            gate.pass().await;
        }
        if !is_first || self.charges {
            let charged = match (&mut tx, &money) {
                (Some(tx), _) => tx.execute(AssertSqlSafe(charge)).await,
                (None, Money::Elsewhere { direct, .. }) => {
                    direct.execute(AssertSqlSafe(charge)).await
                }
                (None, Money::InTransaction) => unreachable!("taken above"),
            };
            if charged.is_err() {
                let failed = StatusCode::INTERNAL_SERVER_ERROR;
                return response(failed, format!("run {run} failed"));
            }
        }
        if let Some(gate) = self.after.filter(|_| is_first) {
            gate.pass().await;
        }
        let status = if is_first { self.status } else { 201 };
        let status = StatusCode::from_u16(status).expect("a status");
        response(status, format!("run {run}"))
    }
}

/// Waits until all connections of a pool are back.
pub async fn all_idle(pool: &Pool) {
    until(|| async { (pool.num_idle() == pool.size() as usize).then_some(()) }).await;
}

/// The handler's own statement.
pub const CHARGE: &str = "INSERT INTO charges";

pub fn charge_of(account: &str) -> String {
    format!("{CHARGE} (account) VALUES ('{account}')")
}
