//! An application: the layer before a handler that charges, over a store that leads through a proxy.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use tokio::{task::JoinHandle, time::Instant};
use tower::{Layer, Service, service_fn, util::BoxCloneSyncService};
use tower_idempotency::{
    Drain, IdempotencyLayer, RejectionKind, RequestBody, ResponseBody, ScopeBy, store::StoreKind,
};

use super::{
    Pool,
    pool::{Money, assert_in_order, connect},
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
            let money = Money::of(world, kind, pool);
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
        let pool = connect(proxy.url(), size, ACQUIRE_LIMIT);
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
        assert_in_order(&self.world, &self.pool).await;
    }
}

impl Handler {
    async fn run(
        self,
        run: usize,
        request: Request<RequestBody<Body>>,
        money: Money,
    ) -> Response<Body> {
        let mut purse = money.take(request.extensions()).await;
        let account = request.headers()["idempotency-key"].to_str();
        let account = account.expect("an account");
        let is_first = run == 1;
        if let Some(gate) = self.before.filter(|_| is_first) {
            gate.pass().await;
        }
        if (!is_first || self.charges) && !purse.charge(account).await {
            let failed = StatusCode::INTERNAL_SERVER_ERROR;
            return response(failed, format!("run {run} failed"));
        }
        if let Some(gate) = self.after.filter(|_| is_first) {
            gate.pass().await;
        }
        let status = if is_first { self.status } else { 201 };
        let status = StatusCode::from_u16(status).expect("a status");
        response(status, format!("run {run}"))
    }
}
