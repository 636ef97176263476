//! What a second request gets: the first one's answer, or a refusal.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, StatusCode};
use tokio::sync::Barrier;
use tower::Layer;
use tower_idempotency::{OnInFlight, RejectionKind};

use crate::{
    app::{Gate, created, handler, respond, spawn},
    backends::Backend,
    support::{
        Runs,
        faulty::{Call, Fault, FaultyStore},
        post, send,
    },
};

pub async fn fifty_equal_requests_at_once_through_two_layers_run_once(backend: Backend) {
    for reaction in [
        OnInFlight::Reject,
        OnInFlight::Wait(Duration::from_secs(30)),
    ] {
        let (runs, before) = (Runs::default(), backend.effects(&Runs::default()).await);
        let make = || {
            backend
                .layer()
                .with_on_in_flight(reaction)
                .with_waiter_bounds(50, 50)
        };
        let services = [(); 2].map(|()| make().layer(handler(&runs, None, created)));
        let key = format!("{reaction:?}").replace(' ', "");
        let start = Arc::new(Barrier::new(50));
        let services = services.iter().cycle().take(50);
        let sent: Vec<_> = services
            .map(|service| {
                let (service, start) = (service.clone(), Arc::clone(&start));
                let request = post(&key, "{}");
                tokio::spawn(async move {
                    start.wait().await;
                    send(&service, request).await
                })
            })
            .collect();
        for answer in sent {
            let answer = answer.await.expect("an answer");
            let refused = answer.rejection() == Some(RejectionKind::InFlight);
            assert!(refused || answer.text() == "run 1", "{answer:?}");
            assert!(
                !refused || reaction == OnInFlight::Reject,
                "a waiter was refused"
            );
        }
        assert_eq!(runs.count(), 1);
        assert_eq!(backend.effects(&runs).await - before, 1);
    }
}

pub async fn a_waiter_that_looks_while_the_result_is_on_its_way_never_runs(backend: Backend) {
    for fault in [
        Fault::IsSlow(Duration::from_millis(300)),
        Fault::AnswersLate,
    ] {
        let runs = Runs::default();
        let before = backend.effects(&runs).await;
        let store = FaultyStore::new(Arc::clone(&backend.store));
        store.then(Call::Complete, fault);
        let first = backend.layer_over(store.clone());
        let first = first.layer(handler(&runs, None, created));
        // Another layer, so that it isn't woken but has to look.
        let wait = OnInFlight::Wait(Duration::from_secs(30));
        let second = backend.layer().with_on_in_flight(wait);
        let second = second.layer(handler(&runs, None, created));
        let key = format!("{fault:?}").replace(['(', ')'], "-");
        let running = spawn(&first, post(&key, "{}"));
        store.reached(Call::Complete, 1).await;

        let waited = send(&second, post(&key, "{}")).await;

        assert!(waited.is_replay(), "{waited:?}");
        store.let_go();
        assert_eq!(running.await.expect("an answer").text(), "run 1");
        assert_eq!(runs.count(), 1);
        assert_eq!(backend.effects(&runs).await - before, 1);
    }
}

pub async fn another_body_or_path_is_refused_during_the_run_and_after_it(backend: Backend) {
    let (runs, gate) = (Runs::default(), Arc::<Gate>::default());
    let service = backend
        .layer()
        .layer(handler(&runs, Some(Arc::clone(&gate)), created));
    let first = spawn(&service, post("k", "1"));
    gate.started.notified().await;

    let elsewhere = || {
        let mut request = post("k", "1");
        *request.uri_mut() = "/refunds".parse().expect("a path");
        request
    };
    let same = send(&service, post("k", "1")).await;
    assert_eq!(same.rejection(), Some(RejectionKind::InFlight));
    for other in [post("k", "2"), elsewhere()] {
        let other = send(&service, other).await;
        assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    }
    gate.open.notify_one();
    assert_eq!(
        first.await.expect("an answer").status(),
        StatusCode::CREATED
    );

    assert!(send(&service, post("k", "1")).await.is_replay());
    for other in [post("k", "2"), elsewhere()] {
        let other = send(&service, other).await;
        assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    }
    assert_eq!((runs.count(), backend.effects(&runs).await), (1, 1));
}

pub async fn keys_and_scopes_are_told_apart_byte_by_byte(backend: Backend) {
    let runs = Runs::default();
    let service = backend.layer().layer(handler(&runs, None, created));
    let long = |last: char| format!("{}{last}", "a".repeat(254));
    let keys = ["ABC", "abc", "YWJj+/==", "ywjj+/==", &long('a'), &long('b')];
    for key in keys {
        assert!(!send(&service, post(key, "{}")).await.is_replay());
    }
    // "t" and "t ", composed and decomposed, left-to-right and overridden.
    let scopes: [&[u8]; 6] = [
        b"t",
        b"t ",
        b"T",
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        "\u{202e}t".as_bytes(),
    ];
    let scoped = |scope: &[u8]| {
        let mut request = post("abc", "{}");
        let scope = HeaderValue::from_bytes(scope).expect("a header value");
        request.headers_mut().insert("x-scope", scope);
        request
    };
    for scope in scopes {
        assert!(!send(&service, scoped(scope)).await.is_replay());
    }
    for request in keys
        .map(|key| post(key, "{}"))
        .into_iter()
        .chain(scopes.map(scoped))
    {
        assert!(send(&service, request).await.is_replay());
    }
    assert_eq!(runs.count(), 12);
}

pub async fn every_kind_of_response_is_replayed_byte_for_byte(backend: Backend) {
    let runs = Runs::default();
    let bodies: [(u16, &'static [u8]); 8] = [
        (201, b"{\"b\":1, \"a\":1.0}"),
        (200, b""),
        (202, b"null"),
        (204, b""),
        (205, b""),
        (303, b""),
        (304, b""),
        (200, b"\x00\xff\xfe"),
    ];
    for (n, (status, body)) in bodies.into_iter().enumerate() {
        let service = backend
            .layer()
            .layer(handler(&runs, None, move |_| async move {
                let mut response = respond(status, body);
                let headers = response.headers_mut();
                headers.append("x-many", HeaderValue::from_static("one"));
                headers.append("x-many", HeaderValue::from_bytes(b"\xe4").expect("a value"));
                headers.insert("location", HeaderValue::from_static("/charges/1"));
                headers.insert("set-cookie", HeaderValue::from_static("session=1"));
                response
            }));
        let key = format!("k{n}");
        let first = send(&service, post(&key, "{}")).await;
        let mut again = send(&service, post(&key, "{}")).await;
        let (mut sent, replayed) = (first.head.headers.clone(), &mut again.head.headers);
        assert!(sent.remove("set-cookie").is_some());
        assert!(replayed.remove("idempotent-replayed").is_some());
        assert_eq!(
            (&sent, first.status(), &first.body),
            (&*replayed, again.head.status, &again.body)
        );
    }
    assert_eq!(runs.count(), 8);
}

pub async fn a_response_over_the_limit_is_delivered_and_remembered_as_done(backend: Backend) {
    let runs = Runs::default();
    let layer = backend.layer().with_response_body_limit(1024);
    let service = layer.layer(handler(&runs, None, |_| async {
        respond(200, vec![7; 2048])
    }));
    let first = send(&service, post("k", "{}")).await;
    assert_eq!((first.status(), first.body.len()), (StatusCode::OK, 2048));
    let again = send(&service, post("k", "{}")).await;
    assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
    assert_eq!((runs.count(), backend.effects(&runs).await), (1, 1));
}
