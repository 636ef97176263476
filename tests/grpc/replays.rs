//! Replays over the wire: trailers, large messages, compression.

use axum::Router;
use http::{HeaderMap, HeaderValue, Request, Response};
use tonic::{codec::CompressionEncoding, service::Routes};
use tower_idempotency::{MemoryStore, RejectionKind};

use crate::{
    code, is_replay, is_unary, keyed, metadata,
    server::{Server, services},
    support::{
        Runs,
        body::{Script, Step},
        handler::{answering, layer},
        probe::Probe,
    },
};

#[tokio::test]
async fn trailers_reach_a_client_twice() {
    let runs = Runs::default();
    // `Told { text: "7" }`, uncompressed.
    let message = "\0\0\0\0\x03\x0a\x017";
    let handler = answering(&runs, move |_, _, _| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.insert("x-receipt", HeaderValue::from_static("7"));
        let steps = [Step::Data(message), Step::Trailers(trailers)];
        let mut response = Response::new(Script::new(steps));
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", grpc);
        response
    });
    let layer = layer(MemoryStore::new()).with_grpc_unary(is_unary);
    let service = tower::Layer::layer(&layer, handler);
    let service =
        tower::ServiceExt::<Request<axum::body::Body>>::map_response(service, |response| {
            response.map(axum::body::Body::new)
        });
    let router = Router::new().route_service("/calls.v1.Calls/Unary", service);
    let server = Server::serve(tower::layer::util::Identity::new(), Routes::from(router)).await;
    let mut client = server.client().await;
    for replay in [false, true] {
        let reply = client.unary(keyed("k", "charge")).await.expect("a reply");
        assert_eq!(reply.get_ref().text, "7");
        assert_eq!(metadata(&reply, "x-receipt"), Some("7"));
        assert_eq!(is_replay(&reply), replay);
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn an_error_that_is_saved_is_replayed_as_that_error() {
    let probe = Probe::new();
    let layer = layer(MemoryStore::new())
        .with_grpc_unary(is_unary)
        .with_response_policy(tower_idempotency::ResponsePolicy::save_all());
    let server = Server::start(layer, &probe).await;
    let mut client = server.client().await;
    for replay in [false, true] {
        let status = client.unary(keyed("k", "status 9")).await;
        let status = status.expect_err("an error");
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert_eq!(status.message(), "told to: 9");
        let marked = status.metadata().contains_key("idempotent-replayed");
        assert_eq!(marked, replay);
    }
    assert_eq!(probe.effects(), 1);
}

const LARGE: usize = 3_000_000;

#[tokio::test]
async fn a_large_reply_is_replayed_within_the_limit_and_done_beyond_it() {
    let ask = format!("large {LARGE}");
    for (limit, kept) in [(4 << 20, true), (1 << 20, false)] {
        let probe = Probe::new();
        let layer = layer(MemoryStore::new())
            .with_grpc_unary(is_unary)
            .with_response_body_limit(limit);
        let server = Server::start(layer, &probe).await;
        let mut client = server.client().await;

        let first = client.unary(keyed("k", &ask)).await.expect("a reply");
        let again = client.unary(keyed("k", &ask)).await;

        assert_eq!(first.get_ref().text.len(), LARGE);
        match again {
            Ok(reply) => assert!(kept && reply.get_ref() == first.get_ref()),
            Err(status) => {
                assert!(!kept);
                assert_eq!(code(&status), Some(RejectionKind::ResponseNotKept.code()));
            }
        }
        assert_eq!(probe.effects(), 1);
    }
}

#[tokio::test]
async fn a_large_request_runs_once() {
    let probe = Probe::new();
    let layer = layer(MemoryStore::new())
        .with_grpc_unary(is_unary)
        .with_request_body_limit(4 << 20);
    let server = Server::start(layer, &probe).await;
    let mut client = server.client().await;
    let ask = "x".repeat(LARGE);
    let first = client.unary(keyed("k", &ask)).await.expect("a reply");
    let again = client.unary(keyed("k", &ask)).await.expect("a reply");
    assert_eq!(again.get_ref(), first.get_ref());
    assert_eq!(probe.effects(), 1);
}

#[tokio::test]
async fn compressed_calls_are_replayed_compressed() {
    let probe = Probe::new();
    let calls = services(&probe)
        .accept_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Gzip);
    // Far smaller than the message, and larger than what is sent.
    let layer = layer(MemoryStore::new())
        .with_grpc_unary(is_unary)
        .with_response_body_limit(LARGE / 10);
    let server = Server::serve(layer, Routes::new(calls)).await;
    let mut client = server
        .client()
        .await
        .send_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Gzip);
    let ask = format!("large {LARGE}");
    for replay in [false, true] {
        let reply = client.unary(keyed("k", &ask)).await.expect("a reply");
        assert_eq!(reply.get_ref().text.len(), LARGE);
        assert_eq!(metadata(&reply, "grpc-encoding"), Some("gzip"));
        assert_eq!(is_replay(&reply), replay);
    }
    assert_eq!(probe.effects(), 1);
}
