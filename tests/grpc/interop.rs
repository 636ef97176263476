//! A client that nobody here wrote: grpcio, which retries by its own rules (gRFC A6) and heeds our pushback.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::{Value, json};
use tokio::process::Command;
use tower_idempotency::{MemoryStore, Outcome, RejectionKind, StoreErrorKind};

use crate::{
    external, keyed,
    log::Log,
    server::Server,
    support::{
        faulty::{Call, Fault, FaultyStore},
        handler::layer,
        probe::Probe,
    },
};

/// An interpreter that has grpcio.
struct Grpcio(PathBuf);

impl Grpcio {
    /// None if `scripts/venv grpcio tests/grpc/grpcio` didn't install it.
    fn find() -> Option<Self> {
        external::python("grpcio", DIRECTORY).map(Self)
    }

    /// Calls with this text, retries on these statuses, and tells what came of it.
    async fn call(&self, address: SocketAddr, text: &str, statuses: &[&str]) -> Value {
        let process = Command::new(&self.0)
            .arg("call.py")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(DIRECTORY))
            .args([&address.to_string(), "k", text])
            .args(statuses)
            // Nothing that names a proxy of this machine.
            .env_clear()
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output();
        let output = process.await.expect("a process").stdout;
        serde_json::from_slice(&output).expect("what came of it")
    }
}

const DIRECTORY: &str = "tests/grpc/grpcio";
const IN_FLIGHT: Outcome = Outcome::Refused(RejectionKind::InFlight);

#[tokio::test]
async fn a_call_in_flight_is_retried_by_our_pushback_and_ends_with_one_effect() {
    let Some(grpcio) = Grpcio::find() else { return };
    let probe = Probe::new().shut();
    let (log, layer) = Log::of(layer(MemoryStore::new()));
    let server = Server::start(layer, &probe).await;
    let mut first = server.client().await;
    let first = tokio::spawn(async move { first.unary(keyed("k", "charge")).await });
    probe.started(1).await;

    let statuses = ["ABORTED", "UNAVAILABLE"];
    let duplicate = grpcio.call(server.address, "charge", &statuses);
    let (came, ()) = tokio::join!(duplicate, async {
        log.saw(IN_FLIGHT).await;
        probe.open();
    });

    assert_eq!(came, json!({"text": "run 1", "replayed": true}));
    first.await.expect("a task").expect("a reply");
    let outcomes = log.outcomes();
    assert_eq!(outcomes.first(), Some(&IN_FLIGHT));
    assert_eq!(outcomes.last(), Some(&Outcome::Replayed));
    log.assert_one_key();
    assert_eq!((probe.runs(), probe.effects()), (1, 1));
}

#[tokio::test]
async fn a_store_that_is_away_for_a_moment_is_got_over_by_our_pushback() {
    let Some(grpcio) = Grpcio::find() else { return };
    let (probe, store) = (Probe::new(), FaultyStore::new(MemoryStore::new()));
    let away = Fault::Fails(StoreErrorKind::Unavailable);
    store.then(Call::Reserve, away).then(Call::Reserve, away);
    let (log, layer) = Log::of(layer(store));
    let server = Server::start(layer, &probe).await;

    let came = grpcio
        .call(server.address, "charge", &["UNAVAILABLE"])
        .await;

    assert_eq!(came, json!({"text": "run 1", "replayed": false}));
    let unavailable = Outcome::Refused(RejectionKind::StoreUnavailable);
    assert_eq!(log.outcomes(), [unavailable, unavailable, Outcome::Saved]);
    log.assert_one_key();
    assert_eq!(probe.effects(), 1);
}

#[tokio::test]
async fn a_call_that_would_be_refused_again_is_not_repeated_even_where_the_policy_would() {
    let Some(grpcio) = Grpcio::find() else { return };
    let probe = Probe::new();
    let (log, layer) = Log::of(layer(MemoryStore::new()));
    let server = Server::start(layer, &probe).await;
    let mut client = server.client().await;
    client.unary(keyed("k", "charge")).await.expect("a reply");

    let statuses = ["INVALID_ARGUMENT"];
    let came = grpcio.call(server.address, "another", &statuses).await;

    assert_eq!(
        came,
        json!({"status": "INVALID_ARGUMENT", "code": "key_reused"})
    );
    let reused = Outcome::Refused(RejectionKind::KeyReused);
    assert_eq!(log.outcomes(), [Outcome::Saved, reused]);
    assert_eq!(probe.effects(), 1);
}
