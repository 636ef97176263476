//! Which requests the layer has to do with at all, and that it decides so before it reads a body.
#![cfg(feature = "memory")]

mod support;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use support::{
    Body, Runs,
    handler::{answering, creating, layer, response},
    post, send,
    spy::Spy,
};
use tower::{Layer, service_fn};
use tower_idempotency::{
    IdempotencyContext, IdempotencyLayer, KeyFormat, MemoryStore, RejectionKind, RequestBody,
    ResponsePolicy, ScopeBy, Verdict,
};

fn request(method: &Method) -> Request<Body> {
    let mut request = post("k", "{}");
    *request.method_mut() = method.clone();
    request
}

#[tokio::test]
async fn safe_methods_pass_also_where_a_key_is_required_or_malformed() {
    let (runs, store) = (Runs::default(), Spy::new());
    let service = layer(store.clone()).require_key().layer(creating(&runs));
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
        for key in [None, Some("k"), Some("k"), Some("k,")] {
            let mut request = request(&method);
            let headers = request.headers_mut();
            match key {
                None => drop(headers.remove("idempotency-key")),
                Some(key) => {
                    headers.insert("idempotency-key", key.parse().expect("a valid value"));
                }
            }
            let answer = send(&service, request).await;
            assert_eq!(answer.status(), StatusCode::CREATED);
            assert!(!answer.is_replay());
        }
    }
    assert_eq!((runs.count(), store.calls()), (16, vec![]));
}

#[tokio::test]
async fn the_methods_that_change_something_engage() {
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        let runs = Runs::default();
        let service = layer(MemoryStore::new()).layer(creating(&runs));
        send(&service, request(&method)).await;
        assert!(send(&service, request(&method)).await.is_replay());
        assert_eq!(runs.count(), 1, "{method}");
    }
}

#[tokio::test]
async fn the_methods_that_engage_can_be_chosen() {
    let (runs, store) = (Runs::default(), Spy::new());
    let purge = Method::from_bytes(b"PURGE").expect("a method");
    let idempotency = layer(store.clone()).with_methods([Method::POST, purge.clone()]);
    let service = idempotency.layer(creating(&runs));

    for _ in 0..2 {
        send(&service, request(&Method::DELETE)).await;
    }
    assert_eq!((runs.count(), store.calls()), (2, vec![]));
    send(&service, request(&purge)).await;
    assert!(send(&service, request(&purge)).await.is_replay());
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn a_grpc_request_passes_through() {
    for content_type in [
        "application/grpc",
        "application/grpc+proto",
        "Application/gRPC-web",
    ] {
        let (runs, store) = (Runs::default(), Spy::new());
        let service = layer(store.clone()).require_key().layer(creating(&runs));
        for _ in 0..2 {
            let mut request = post("k", "{}");
            let value = content_type.parse().expect("a valid value");
            request.headers_mut().insert("content-type", value);
            assert_eq!(send(&service, request).await.status(), StatusCode::CREATED);
        }
        assert_eq!((runs.count(), store.calls()), (2, vec![]), "{content_type}");
    }
}

#[tokio::test]
async fn mounted_twice_only_the_outer_layer_engages() {
    let (runs, outer, inner) = (Runs::default(), Spy::new(), Spy::new());
    let service =
        layer(outer.clone()).layer(layer(inner.clone()).require_key().layer(creating(&runs)));

    send(&service, post("k", "{}")).await;
    assert!(send(&service, post("k", "{}")).await.is_replay());

    assert_eq!((runs.count(), inner.calls()), (1, vec![]));
    assert!(!outer.calls().is_empty());
}

/// A body that counts how often it was polled.
struct Watched(Arc<AtomicUsize>);

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(None)
    }
}

#[tokio::test]
async fn what_the_head_decides_is_decided_before_the_body_is_polled() {
    let no_scope = ScopeBy::parts(|_| None);
    let refused = [
        (layer(MemoryStore::new()), "a,b", RejectionKind::InvalidKey),
        (
            layer(MemoryStore::new()).with_key_format(KeyFormat::uuid()),
            "k",
            RejectionKind::InvalidKey,
        ),
        (
            IdempotencyLayer::new(MemoryStore::new(), no_scope),
            "k",
            RejectionKind::MissingScope,
        ),
        (
            layer(MemoryStore::new()).require_key(),
            "",
            RejectionKind::MissingKey,
        ),
    ];
    for (idempotency, key, kind) in refused {
        let (runs, polls) = (Runs::default(), Arc::new(AtomicUsize::new(0)));
        let service = idempotency.layer(answering(&runs, |_, _, _| response(StatusCode::OK, "")));
        let mut request = Request::post("/");
        if !key.is_empty() {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Watched(Arc::clone(&polls)));

        let answer = send(&service, request.expect("a valid request")).await;

        assert_eq!(answer.rejection(), Some(kind));
        assert_eq!((runs.count(), polls.load(Ordering::SeqCst)), (0, 0));
    }
}

/// As hyper's `OnUpgrade` and a tracing layer's values are.
#[derive(Clone, Debug, PartialEq)]
struct Outside(u8);

#[tokio::test]
async fn extensions_of_request_and_response_survive() {
    let service = layer(MemoryStore::new()).layer(service_fn(
        |request: Request<RequestBody<Body>>| async move {
            let mut response = response(StatusCode::OK, "");
            let outside = request.extensions().get::<Outside>().cloned();
            response.extensions_mut().insert(outside);
            Ok::<_, Infallible>(response)
        },
    ));
    let websocket = {
        let request = Request::get("/socket").header("upgrade", "websocket");
        let request = request.header("connection", "upgrade");
        request.header("idempotency-key", "w")
    };
    let upgrade = Request::post("/upgrade")
        .header("upgrade", "custom")
        .header("idempotency-key", "u");
    for request in [websocket, upgrade, Request::post("/unkeyed")] {
        let mut request = request.body(Body::default()).expect("a valid request");
        request.extensions_mut().insert(Outside(7));
        let answer = send(&service, request).await;
        let seen = answer.head.extensions.get::<Option<Outside>>();
        assert_eq!(seen, Some(&Some(Outside(7))));
    }
}

#[tokio::test]
async fn a_post_that_upgrades_is_done_but_can_not_be_replayed_under_any_policy() {
    let policies = [
        ResponsePolicy::default(),
        ResponsePolicy::save_all(),
        ResponsePolicy::by(|_| Verdict::Save),
    ];
    for policy in policies {
        let runs = Runs::default();
        let idempotency = layer(MemoryStore::new()).with_response_policy(policy);
        let service = idempotency.layer(answering(&runs, |_, _, _| {
            let mut switching = response(StatusCode::SWITCHING_PROTOCOLS, "");
            let custom = "custom".parse().expect("a valid value");
            switching.headers_mut().insert("upgrade", custom);
            switching
        }));

        let first = send(&service, post("k", "")).await;
        let again = send(&service, post("k", "")).await;

        assert_eq!(first.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(first.head.headers["upgrade"], "custom");
        assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn an_unkeyed_request_has_no_context_and_a_keyed_one_has() {
    let seen = |request: Request<RequestBody<Body>>| async move {
        let engaged = request.extensions().get::<IdempotencyContext>().is_some();
        Ok::<_, Infallible>(Response::new(Body::from(engaged.to_string())))
    };
    let service = layer(MemoryStore::new()).layer(service_fn(seen));
    let unkeyed = Request::post("/").body(Body::default()).expect("a request");

    assert_eq!(send(&service, unkeyed).await.text(), "false");
    assert_eq!(send(&service, post("k", "{}")).await.text(), "true");
}
