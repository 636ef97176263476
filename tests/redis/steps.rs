//! Steps of a run under which the server runs full, or is replaced by another one.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, StatusCode};
use tokio::task::block_in_place;
use tower::{Layer, Service, service_fn};
use tower_idempotency::{
    IdempotencyContext, IdempotencyLayer, RedisStore, RejectionKind, RequestBody, ScopeBy,
    StepError, StepErrorKind, store::Takeover,
};

use crate::{
    redis_support::*,
    relay::Relay,
    servers::{Redis, RedisCluster},
    support::{
        Body,
        handler::{Gate, response},
        post,
        probe::spawn_send,
        send,
    },
};

/// A handler of two steps, whose first run stands still in the middle and then fails.
#[derive(Clone)]
struct Charge {
    /// Where the first run waits: in the effect of the first step, and between the two.
    in_step: Gate,
    between: Gate,
    effects: Arc<[AtomicUsize; 2]>,
}

impl Charge {
    fn new() -> Self {
        Self {
            in_step: Gate::closed(),
            between: Gate::closed(),
            effects: Arc::default(),
        }
    }

    fn effects(&self) -> [usize; 2] {
        self.effects
            .each_ref()
            .map(|effect| effect.load(Ordering::SeqCst))
    }

    async fn steps(&self, context: &IdempotencyContext) -> Result<String, StepError> {
        let is_first = context.attempt() == 1;
        let happen = |effect: usize| self.effects[effect].fetch_add(1, Ordering::SeqCst) + 1;
        let first = async || {
            let done = happen(0);
            if is_first {
                self.in_step.pass().await;
            }
            Ok::<_, StepError>(done)
        };
        let first = context.step("first", first).await?;
        if is_first {
            self.between.pass().await;
        }
        let second = context.step("second", async || Ok::<_, StepError>(happen(1)));
        let second = second.await?;
        Ok(format!("{first} {second}"))
    }

    /// Its first run answers 502 in the end, and one that a step stopped 500 with the kind.
    fn over(
        &self,
        store: RedisStore,
        takeover: Takeover,
    ) -> impl Service<
        Request<Body>,
        Response = http::Response<tower_idempotency::ResponseBody<Body>>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static {
        let charge = self.clone();
        let layer = IdempotencyLayer::new(store, ScopeBy::single_tenant()).with_takeover(takeover);
        layer.layer(service_fn(move |request: Request<RequestBody<Body>>| {
            let (charge, context) = (charge.clone(), request.extensions().get().cloned());
            async move {
                let context: IdempotencyContext = context.unwrap();
                Ok(match charge.steps(&context).await {
                    Ok(_) if context.attempt() == 1 => response(StatusCode::BAD_GATEWAY, ""),
                    Ok(text) => response(StatusCode::CREATED, text),
                    Err(stopped) => response(
                        StatusCode::INTERNAL_SERVER_ERROR,
                        format!("{:?}", stopped.kind()),
                    ),
                })
            }
        }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_runs_full_in_mid_step_has_its_note() {
    let Some(server) = block_in_place(Redis::start) else {
        return;
    };
    let charge = Charge::new();
    let service = charge.over(store_at(server.url()), Takeover::RunAgain);
    let failed = spawn_send(&service, post("k", "{}"));
    charge.in_step.reached().await;
    let fill = |bytes| block_in_place(|| server.run::<()>(&["CONFIG", "SET", "maxmemory", bytes]));
    fill("1").unwrap();
    charge.in_step.open();
    charge.between.open();
    assert_eq!(failed.await.unwrap().status(), StatusCode::BAD_GATEWAY);

    let refused = send(&service, post("k", "{}")).await;
    assert_eq!(refused.rejection(), Some(RejectionKind::StoreFull));
    fill("0").unwrap();
    assert_eq!(send(&service, post("k", "{}")).await.text(), "1 1");
    assert_eq!(charge.effects(), [1, 1]);
}

/// When the server is replaced, and whether what comes has what the other one had.
async fn replaced(in_step: bool, has_caught_up: bool, takeover: Takeover) -> Option<Charge> {
    let old = block_in_place(Redis::start)?;
    let new = block_in_place(Redis::start)?;
    if has_caught_up {
        block_in_place(|| new.follow(&old));
    }
    let relay = Relay::start(old.port()).await;
    let charge = Charge::new();
    let service = charge.over(store_at(&relay.url), takeover);
    let failed = spawn_send(&service, post("k", "{}"));
    charge.in_step.reached().await;
    if !in_step {
        charge.in_step.open();
        charge.between.reached().await;
    }
    block_in_place(|| {
        if has_caught_up {
            new.catch_up_with(&old);
            assert_eq!(new.run::<u64>(&["DBSIZE"]).unwrap(), 1);
        }
        old.kill();
        new.promote();
    });
    relay.lead_to(new.port());
    charge.in_step.open();
    charge.between.open();
    let failed = failed.await.unwrap();
    let retry = async || send(&service, post("k", "{}")).await;
    if has_caught_up {
        assert_eq!(failed.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(retry().await.text(), "1 1");
        return Some(charge);
    }
    // It learns that its claim is gone, and begins nothing more.
    assert_eq!(failed.text(), format!("{:?}", StepErrorKind::LostClaim));
    match takeover {
        Takeover::RunAgain => assert_eq!(retry().await.text(), "2 1"),
        _ => {
            let told = retry().await.rejection();
            assert_eq!(told, Some(RejectionKind::OutcomeUnknown));
        }
    }
    Some(charge)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_over_in_mid_step_has_its_note_and_those_before() {
    for in_step in [true, false] {
        if let Some(charge) = replaced(in_step, true, Takeover::RunAgain).await {
            assert_eq!(charge.effects(), [1, 1], "{in_step}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_claim_was_lost_with_its_server_stops_and_its_outcome_is_unknown() {
    if let Some(charge) = replaced(true, false, Takeover::Refuse).await {
        assert_eq!(charge.effects(), [1, 0]);
    }
    // The note is lost with the claim: the step is done again where that was chosen.
    if let Some(charge) = replaced(true, false, Takeover::RunAgain).await {
        assert_eq!(charge.effects(), [2, 1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_takes_over_in_mid_step_has_its_note_and_those_before() {
    let Some(cluster) = block_in_place(RedisCluster::start) else {
        return;
    };
    let client = redis::cluster::ClusterClient::builder(cluster.urls())
        .response_timeout(Duration::from_secs(1))
        .build();
    // A replica has what is told before a failover.
    let store = RedisStore::cluster(client.unwrap());
    let charge = Charge::new();
    let service = charge.over(store, Takeover::RunAgain);
    let failed = spawn_send(&service, post("k", "{}"));
    charge.in_step.reached().await;
    let masters = || cluster.nodes().iter().filter(|node| node.runs());
    let holder = || {
        let holds = |node: &&Redis| !node.run::<Vec<String>>(&["KEYS", "*"]).unwrap().is_empty();
        masters()
            .find(holds)
            .unwrap()
            .run::<Vec<String>>(&["KEYS", "*"])
            .unwrap()
            .remove(0)
    };
    let name = block_in_place(holder);
    block_in_place(|| cluster.fail_over(&name));
    charge.in_step.open();
    charge.between.reached().await;
    block_in_place(|| cluster.fail_over(&name));
    charge.between.open();
    assert_eq!(failed.await.unwrap().status(), StatusCode::BAD_GATEWAY);

    assert_eq!(send(&service, post("k", "{}")).await.text(), "1 1");
    assert_eq!(charge.effects(), [1, 1]);
}
