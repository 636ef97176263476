//! A real client closes its socket before, during and after the effect: the handler runs once, and the retry is replayed.
#![cfg(feature = "memory")]
mod support;

use std::time::Duration;

use axum::body::Body;
use http::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{
    faulty::{Call, Fault, FaultyStore},
    probe::Probe,
    server::{Server, read_all},
};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tower_idempotency::{Drain, IdempotencyLayer, MemoryStore, ScopeBy};

const CHARGE: &[u8] = b"POST /charges HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n\
    content-length: 2\r\nconnection: close\r\n\r\n{}";

const MINUTE: Duration = Duration::from_secs(60);

struct Setting {
    server: Server,
    store: FaultyStore,
    probe: Probe,
    drain: Drain,
}

async fn setting(probe: Probe) -> Setting {
    let (store, drain) = (FaultyStore::new(MemoryStore::new()), Drain::new());
    let layer = IdempotencyLayer::new(store.clone(), ScopeBy::single_tenant());
    let server = Server::start(layer.with_drain(drain.clone()), probe.clone()).await;
    Setting {
        server,
        store,
        probe,
        drain,
    }
}

impl Setting {
    /// The client has gone. The run ends without it, and the retry gets its answer.
    async fn assert_replayed_after_the_caller_has_gone(self) {
        self.server.callers_gone(1).await;
        self.probe.open();
        self.store.let_go();
        assert_eq!(self.drain.wait(MINUTE).await, 0);

        let retried = self.server.exchange(CHARGE).await;

        assert!(retried.starts_with("HTTP/1.1 201"), "{retried}");
        assert!(retried.contains("idempotent-replayed: true"), "{retried}");
        assert!(retried.ends_with("run 1"), "{retried}");
        assert_eq!((self.probe.runs(), self.probe.effects()), (1, 1));
        self.store.all_calls_ended().await;
    }
}

#[tokio::test]
async fn a_client_that_closes_its_http1_connection_in_mid_run() {
    let setting = setting(Probe::new().shut()).await;
    let stream = setting.server.connect(CHARGE).await;
    setting.probe.started(1).await;
    drop(stream);
    setting.assert_replayed_after_the_caller_has_gone().await;
}

#[tokio::test]
async fn a_client_that_resets_its_http1_connection_in_mid_run() {
    let setting = setting(Probe::new().shut()).await;
    let stream = setting.server.connect(CHARGE).await;
    setting.probe.started(1).await;
    stream.set_zero_linger().expect("a socket option");
    drop(stream);
    setting.assert_replayed_after_the_caller_has_gone().await;
}

#[tokio::test]
async fn a_client_that_closes_its_writing_half_is_treated_as_gone_and_loses_nothing() {
    let setting = setting(Probe::new().shut()).await;
    let mut stream = setting.server.connect(CHARGE).await;
    setting.probe.started(1).await;
    stream.shutdown().await.expect("half closed");
    setting.assert_replayed_after_the_caller_has_gone().await;
    drop(stream);
}

#[tokio::test]
async fn a_client_that_closes_while_its_key_is_being_reserved_never_runs_and_its_retry_does() {
    let setting = setting(Probe::new()).await;
    setting.store.then(Call::Reserve, Fault::AnswersLate);
    let stream = setting.server.connect(CHARGE).await;
    setting.store.reached(Call::Reserve, 1).await;
    drop(stream);
    setting.server.callers_gone(1).await;
    setting.store.let_go();
    assert_eq!(setting.drain.wait(MINUTE).await, 0);
    assert_eq!(setting.probe.runs(), 0);

    let retried = setting.server.exchange(CHARGE).await;

    assert!(retried.ends_with("run 1"), "{retried}");
    assert!(!retried.contains("idempotent-replayed"), "{retried}");
    setting.store.all_calls_ended().await;
}

#[tokio::test]
async fn a_client_that_closes_after_the_effect_while_the_response_is_being_saved() {
    for fault in [Fault::Hangs, Fault::AnswersLate] {
        let setting = setting(Probe::new()).await;
        setting.store.then(Call::Complete, fault);
        let stream = setting.server.connect(CHARGE).await;
        setting.store.reached(Call::Complete, 1).await;
        assert_eq!(setting.probe.effects(), 1);
        drop(stream);
        setting.assert_replayed_after_the_caller_has_gone().await;
    }
}

#[tokio::test]
async fn a_client_that_never_reads_its_answer() {
    let setting = setting(Probe::new()).await;
    let stream = setting.server.connect(CHARGE).await;
    setting.store.reached(Call::Complete, 1).await;
    drop(stream);
    assert_eq!(setting.drain.wait(MINUTE).await, 0);

    let retried = setting.server.exchange(CHARGE).await;
    assert!(retried.contains("idempotent-replayed: true"), "{retried}");
    assert_eq!(setting.probe.runs(), 1);
}

#[tokio::test]
async fn an_http2_client_that_resets_its_stream_in_mid_run_and_goes_on_with_its_connection() {
    let setting = setting(Probe::new().shut()).await;
    let stream = TcpStream::connect(setting.server.address).await;
    let io = TokioIo::new(stream.expect("a connection"));
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), io)
        .await
        .expect("a handshake");
    let connection = tokio::spawn(connection);
    let charge = || {
        Request::post(format!("http://{}/charges", setting.server.address))
            .header("idempotency-key", "k")
            .body(Body::from("{}"))
            .expect("a request")
    };
    let first = tokio::spawn(client.send_request(charge()));
    setting.probe.started(1).await;
    first.abort();
    setting.server.callers_gone(1).await;
    setting.probe.open();
    assert_eq!(setting.drain.wait(MINUTE).await, 0);

    let retried = client.send_request(charge()).await.expect("a response");
    assert_eq!(retried.status(), 201);
    assert_eq!(retried.headers()["idempotent-replayed"], "true");
    assert_eq!((setting.probe.runs(), setting.probe.effects()), (1, 1));
    drop(client);
    connection.abort();
}

#[tokio::test]
async fn a_shutdown_with_the_client_gone_and_the_handler_half_way_waits_by_the_drain() {
    let Setting {
        server,
        store,
        probe,
        drain,
    } = setting(Probe::new().shut()).await;
    let stream = server.connect(CHARGE).await;
    probe.started(1).await;
    drop(stream);
    server.callers_gone(1).await;
    server.shut_down().await;

    // No connection is left, the run is.
    assert_eq!(drain.wait(Duration::ZERO).await, 1);
    assert_eq!(probe.effects(), 0);
    probe.open();
    assert_eq!(drain.wait(MINUTE).await, 0);
    assert_eq!((probe.effects(), store.count(Call::Complete)), (1, 1));
    store.all_calls_ended().await;
}

#[tokio::test]
async fn a_client_that_stays_gets_its_answer_through_a_shutdown() {
    let setting = setting(Probe::new().shut()).await;
    let stream = setting.server.connect(CHARGE).await;
    setting.probe.started(1).await;
    let server = tokio::spawn(setting.server.shut_down());
    setting.probe.open();
    let answer = read_all(stream).await;
    assert!(answer.ends_with("run 1"), "{answer}");
    server.await.expect("the server ends well");
    assert_eq!(setting.drain.wait(MINUTE).await, 0);
}
