//! Which calls engage, and where the layer may be.

use tower_idempotency::{MemoryStore, RejectionKind, sqlite};

use crate::{
    ask, is_replay, is_unary, keyed, metadata,
    server::{Place, Server},
    support::{handler::layer, probe::Probe},
};

#[tokio::test]
async fn a_unary_call_runs_once_and_is_replayed_with_its_metadata_around_server_and_service() {
    for place in [Place::Server, Place::Service] {
        let probe = Probe::new();
        let layer = layer(MemoryStore::new()).with_grpc_unary(is_unary);
        let server = Server::start_at(place, layer, &probe).await;
        let mut client = server.client().await;

        let first = client.unary(keyed("k", "charge")).await.expect("a reply");
        let again = client.unary(keyed("k", "charge")).await.expect("a reply");

        assert_eq!(first.get_ref().text, "run 1", "{place:?}");
        assert_eq!(again.get_ref(), first.get_ref());
        assert_eq!(metadata(&again, "x-receipt"), Some("7"));
        assert!(!is_replay(&first));
        assert!(is_replay(&again));
        assert_eq!(probe.effects(), 1);
    }
}

#[tokio::test]
async fn the_same_on_a_lease_store_in_a_database() {
    let file = tempfile::tempdir().expect("a directory");
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(file.path().join("keys.db"))
        .create_if_missing(true);
    let pool = sqlx::SqlitePool::connect_with(options).await;
    let store = sqlite::LeaseStore::new(pool.expect("a pool"));
    store.migrate().await.expect("a table");
    let probe = Probe::new();
    let server = Server::start(layer(store).with_grpc_unary(is_unary), &probe).await;
    let mut client = server.client().await;

    let first = client.unary(keyed("k", "charge")).await.expect("a reply");
    let again = client.unary(keyed("k", "charge")).await.expect("a reply");

    assert_eq!(again.get_ref(), first.get_ref());
    assert!(is_replay(&again));
    assert_eq!(probe.effects(), 1);
}

#[tokio::test]
async fn no_grpc_call_engages_where_none_is_named() {
    let probe = Probe::new();
    let server = Server::start(layer(MemoryStore::new()).require_key(), &probe).await;
    let mut client = server.client().await;
    client.unary(keyed("k", "charge")).await.expect("a reply");
    client.unary(keyed("k", "charge")).await.expect("a reply");
    client.unary(ask("charge")).await.expect("a reply");
    assert_eq!(probe.effects(), 3);
}

#[tokio::test]
async fn a_call_without_a_key_passes_unless_one_is_required() {
    let probe = Probe::new();
    let named = layer(MemoryStore::new()).with_grpc_unary(is_unary);
    let server = Server::start(named.clone(), &probe).await;
    let mut client = server.client().await;
    client.unary(ask("charge")).await.expect("a reply");
    client.unary(ask("charge")).await.expect("a reply");
    assert_eq!(probe.effects(), 2);

    let server = Server::start(named.require_key(), &probe).await;
    let mut client = server.client().await;
    let refused = client.unary(ask("charge")).await.expect_err("refused");
    assert_eq!(
        crate::code(&refused),
        Some(RejectionKind::MissingKey.code())
    );
    assert_eq!(probe.effects(), 2);
}

#[tokio::test]
async fn a_closure_that_panics_is_a_refusal_of_the_call_and_no_run() {
    let probe = Probe::new();
    let broken = layer(MemoryStore::new()).with_grpc_unary(|path| panic!("no path: {path}"));
    let server = Server::start(broken, &probe).await;
    let mut client = server.client().await;

    let refused = client.unary(keyed("k", "charge")).await;

    let refused = refused.expect_err("refused");
    assert_eq!(refused.code(), tonic::Code::Internal);
    assert_eq!(
        crate::code(&refused),
        Some(RejectionKind::HandlerFailed.code())
    );
    assert_eq!(probe.runs(), 0);
}
