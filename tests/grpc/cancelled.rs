//! Callers that don't wait for their answer: the run goes on, and a retry gets it.

use std::time::Duration;

use tonic::Code;
use tower_idempotency::{Drain, MemoryStore, RejectionKind};

use crate::{
    code, is_replay, is_unary, keyed,
    server::Server,
    support::{handler::layer, probe::Probe},
};

const MINUTE: Duration = Duration::from_secs(60);

async fn server(probe: &Probe, drain: &Drain) -> Server {
    let layer = layer(MemoryStore::new()).with_grpc_unary(is_unary);
    Server::start(layer.with_drain(drain.clone()), probe).await
}

#[tokio::test]
async fn a_client_that_resets_its_stream_in_mid_run_gets_its_reply_by_a_retry() {
    let (probe, drain) = (Probe::new().shut(), Drain::new());
    let server = server(&probe, &drain).await;
    let mut client = server.client().await;
    let mut calling = client.clone();
    let first = tokio::spawn(async move { calling.unary(keyed("k", "charge")).await });
    probe.started(1).await;
    first.abort();
    assert!(first.await.expect_err("dropped").is_cancelled());
    // On the same connection, so the server has read the reset before.
    let meanwhile = client.unary(keyed("k", "charge")).await;
    let meanwhile = meanwhile.expect_err("refused");
    assert_eq!(code(&meanwhile), Some(RejectionKind::InFlight.code()));

    probe.open();
    assert_eq!(drain.wait(MINUTE).await, 0);
    let retried = client.unary(keyed("k", "charge")).await.expect("a reply");

    assert!(is_replay(&retried));
    assert_eq!((probe.runs(), probe.effects()), (1, 1));
}

#[tokio::test]
async fn a_deadline_that_passes_in_mid_run_ends_the_wait_and_not_the_run() {
    let (probe, drain) = (Probe::new().shut(), Drain::new());
    let server = server(&probe, &drain).await;
    let mut client = server.client().await;
    let mut hasty = keyed("k", "charge");
    hasty.set_timeout(Duration::from_millis(100));
    let mut calling = client.clone();
    let first = tokio::spawn(async move { calling.unary(hasty).await });
    probe.started(1).await;

    let status = first.await.expect("a task").expect_err("too late");
    // tonic's client tells its own timeout as `Cancelled`, its server as `DeadlineExceeded`: whichever comes first.
    let late = [Code::Cancelled, Code::DeadlineExceeded];
    assert!(late.contains(&status.code()), "{status:?}");
    probe.open();
    assert_eq!(drain.wait(MINUTE).await, 0);
    let retried = client.unary(keyed("k", "charge")).await.expect("a reply");

    assert!(is_replay(&retried));
    assert_eq!((probe.runs(), probe.effects()), (1, 1));
}
