//! Whose key it is: no caller meets another's record, and without a scope nothing is looked up.
#![cfg(feature = "memory")]

mod support;

use std::{convert::Infallible, sync::Arc};

use http::{HeaderName, Request, StatusCode};
use support::{
    Body, Runs,
    handler::{Gate, creating, response},
    post, send,
    spy::Spy,
};
use tower::{Layer, ServiceBuilder, service_fn};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, RejectionKind, RequestBody, Scope, ScopeBy,
};

#[derive(Clone)]
struct Principal {
    id: &'static str,
}

const TENANT: HeaderName = HeaderName::from_static("x-tenant");

/// The same key and body, as another caller sends it.
fn post_as(caller: &'static str) -> Request<Body> {
    let mut request = post("k", "{}");
    request.extensions_mut().insert(Principal { id: caller });
    let value = caller.parse().expect("a valid header value");
    request.headers_mut().insert(TENANT, value);
    request
}

fn every_way() -> [ScopeBy; 3] {
    [
        ScopeBy::extension(|principal: &Principal| principal.id),
        ScopeBy::trusted_header(TENANT),
        ScopeBy::parts(|parts| Scope::new(parts.extensions.get::<Principal>()?.id)),
    ]
}

#[tokio::test]
async fn two_callers_with_one_key_have_their_own_records() {
    for scope in every_way() {
        let runs = Runs::default();
        let idempotency = IdempotencyLayer::new(MemoryStore::new(), scope);
        let service = idempotency.layer(creating(&runs));

        assert_eq!(send(&service, post_as("alice")).await.text(), "run 1: {}");
        assert_eq!(send(&service, post_as("bob")).await.text(), "run 2: {}");
        let replay = send(&service, post_as("alice")).await;
        assert!(replay.is_replay());
        assert_eq!(replay.text(), "run 1: {}");
        assert_eq!(runs.count(), 2);
    }
}

#[tokio::test]
async fn nobody_can_block_the_owner_of_a_key_by_using_it_first() {
    let (runs, gate) = (Runs::default(), Gate::closed());
    let scope = ScopeBy::extension(|principal: &Principal| principal.id);
    let service = IdempotencyLayer::new(MemoryStore::new(), scope).layer(service_fn({
        let (runs, gate) = (runs.clone(), gate.clone());
        move |request: Request<RequestBody<Body>>| {
            runs.add();
            let gate = gate.clone();
            async move {
                if request.extensions().get::<Principal>().expect("auth").id == "mallory" {
                    gate.pass().await;
                }
                Ok::<_, Infallible>(response(StatusCode::CREATED, ""))
            }
        }
    }));
    let mallory = tokio::spawn({
        let service = service.clone();
        async move { send(&service, post_as("mallory")).await }
    });
    gate.reached().await;

    let alice = send(&service, post_as("alice")).await;

    assert_eq!(alice.status(), StatusCode::CREATED);
    assert_eq!(runs.count(), 2);
    gate.open();
    assert_eq!(mallory.await.expect("a run").status(), StatusCode::CREATED);
}

#[tokio::test]
async fn without_a_scope_a_request_is_refused_and_nothing_is_looked_up() {
    let by_extension = || ScopeBy::extension(|principal: &Principal| principal.id);
    let by_header = || ScopeBy::trusted_header(TENANT);
    let nobody = || post("k", "{}");
    let with_lines = |lines: &[&str]| {
        let mut request = nobody();
        for line in lines {
            let value = line.parse().expect("a valid header value");
            request.headers_mut().append(TENANT, value);
        }
        request
    };
    let cases = [
        (by_extension(), nobody()),
        (by_extension(), post_as("")),
        (by_header(), nobody()),
        (by_header(), with_lines(&[""])),
        (by_header(), with_lines(&["a", "a"])),
        (by_header(), with_lines(&["a", "b"])),
        (ScopeBy::parts(|_| None), post_as("alice")),
        (ScopeBy::parts(|_| Scope::new("")), post_as("alice")),
    ];
    for (number, (scope, request)) in cases.into_iter().enumerate() {
        let (runs, store) = (Runs::default(), Spy::new());
        let service = IdempotencyLayer::new(store.clone(), scope).layer(creating(&runs));

        let refused = send(&service, request).await;

        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "case {number}");
        assert_eq!(refused.rejection(), Some(RejectionKind::MissingScope));
        assert_eq!((runs.count(), store.calls()), (0, vec![]));
    }
}

#[tokio::test]
async fn a_request_without_a_key_needs_no_scope() {
    let runs = Runs::default();
    let idempotency = IdempotencyLayer::new(MemoryStore::new(), ScopeBy::parts(|_| None));
    let service = idempotency.layer(creating(&runs));
    let mut request = post("k", "{}");
    request.headers_mut().remove("idempotency-key");

    assert_eq!(send(&service, request).await.status(), StatusCode::CREATED);
}

#[tokio::test]
async fn a_revoked_caller_gets_no_replay() {
    // Authentication outside, as documented: it alone tells the principal.
    let runs = Runs::default();
    let store = Spy::new();
    let service = ServiceBuilder::new()
        .map_request(|mut request: Request<Body>| {
            if request
                .headers()
                .get("authorization")
                .is_some_and(|token| token == "Bearer good")
            {
                request.extensions_mut().insert(Principal { id: "alice" });
            }
            request
        })
        .layer(IdempotencyLayer::new(
            store.clone(),
            ScopeBy::extension(|principal: &Principal| principal.id),
        ))
        .service(creating(&runs));
    let with_token = |token: Option<&str>| {
        let mut request = post("k", "{}");
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().expect("a valid value");
            request.headers_mut().insert("authorization", value);
        }
        request
    };

    send(&service, with_token(Some("good"))).await;
    let calls = store.calls();
    for token in [None, Some("revoked")] {
        let refused = send(&service, with_token(token)).await;
        assert_eq!(refused.rejection(), Some(RejectionKind::MissingScope));
    }
    assert_eq!(store.calls(), calls);
    assert!(send(&service, with_token(Some("good"))).await.is_replay());
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn scopes_are_told_apart_byte_by_byte() {
    #[derive(Clone)]
    struct Tenant(String);

    let (runs, store) = (Runs::default(), MemoryStore::new());
    let scope = ScopeBy::extension(|tenant: &Tenant| tenant.0.clone());
    let service = IdempotencyLayer::new(store, scope).layer(creating(&runs));
    let names = [
        "t",
        "T",
        "t ",
        " t",
        "t\0",
        "t\u{202e}",
        "\u{e9}",
        "e\u{301}",
        "1",
        "01",
    ];
    for _ in 0..2 {
        for name in names {
            let mut request = post("k", "{}");
            request.extensions_mut().insert(Tenant(name.to_owned()));
            send(&service, request).await;
        }
    }
    assert_eq!(runs.count(), names.len());
}

#[tokio::test]
async fn a_scope_closure_that_panics_is_a_500_and_the_service_lives_on() {
    let (runs, store) = (Runs::default(), Spy::new());
    let known = Arc::new("alice");
    let scope = ScopeBy::extension(move |principal: &Principal| {
        assert_eq!(principal.id, *known, "unknown tenant");
        principal.id
    });
    let service = IdempotencyLayer::new(store.clone(), scope).layer(creating(&runs));

    let failed = send(&service, post_as("bob")).await;
    assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
    assert_eq!((runs.count(), store.calls()), (0, vec![]));

    let served = send(&service, post_as("alice")).await;
    assert_eq!(served.status(), StatusCode::CREATED);
}
