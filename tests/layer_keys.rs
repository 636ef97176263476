//! Which requests have a key, and that what is no key is refused before anything happens.
#![cfg(feature = "memory")]

mod support;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use support::{
    Body, Runs,
    handler::{answering, creating, layer, response},
    post, send,
    spy::Spy,
};
use tower::Layer;
use tower_idempotency::{KeyBy, KeyFormat, MemoryStore, RejectionKind};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

fn without_key(body: &str) -> Request<Body> {
    let mut request = post("k", body);
    request.headers_mut().remove(KEY);
    request
}

/// A request with these lines of the header.
fn with_lines(lines: &[&[u8]], body: &str) -> Request<Body> {
    let mut request = without_key(body);
    for line in lines {
        let value = HeaderValue::from_bytes(line).expect("a valid header value");
        request.headers_mut().append(KEY, value);
    }
    request
}

#[tokio::test]
async fn a_doubled_key_is_refused_and_a_retry_with_one_line_runs_once() {
    let doubled: [&[&[u8]]; 4] = [&[b"K", b"K"], &[b"K, K"], &[b"K", b"L"], &[b"\"K\", \"K\""]];
    for lines in doubled {
        let (runs, store) = (Runs::default(), Spy::new());
        let service = layer(store.clone()).layer(creating(&runs));

        let refused = send(&service, with_lines(lines, "{}")).await;
        assert_eq!(refused.rejection(), Some(RejectionKind::InvalidKey));
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        assert_eq!((runs.count(), store.calls()), (0, vec![]));

        let single = send(&service, with_lines(&[b"K"], "{}")).await;
        assert_eq!(single.status(), StatusCode::CREATED);
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn two_lines_are_two_lines_in_whatever_case_their_names_are_written() {
    let (runs, store) = (Runs::default(), Spy::new());
    let service = layer(store.clone()).layer(creating(&runs));
    let request = Request::post("/charges")
        .header("Idempotency-Key", "K")
        .header("IDEMPOTENCY-KEY", "K")
        .body(Body::default())
        .expect("a valid request");

    let refused = send(&service, request).await;

    assert_eq!(refused.rejection(), Some(RejectionKind::InvalidKey));
    assert_eq!((runs.count(), store.calls()), (0, vec![]));
}

#[tokio::test]
async fn a_blank_key_is_neither_a_key_nor_no_key() {
    for blank in [&b""[..], b" ", b"\t", b"\"\"", b"\" \""] {
        for required in [false, true] {
            let (runs, store) = (Runs::default(), Spy::new());
            let mut idempotency = layer(store.clone());
            if required {
                idempotency = idempotency.require_key();
            }
            let service = idempotency.layer(creating(&runs));
            for body in ["{}", "[]"] {
                let refused = send(&service, with_lines(&[blank], body)).await;
                assert_eq!(refused.rejection(), Some(RejectionKind::InvalidKey));
            }
            assert_eq!((runs.count(), store.calls()), (0, vec![]), "{blank:?}");
        }
    }
}

#[tokio::test]
async fn without_a_key_every_request_runs_and_the_store_is_not_touched() {
    let sources = [
        KeyBy::default(),
        KeyBy::parts(|_| None),
        KeyBy::body(|_, _| None),
    ];
    for source in sources {
        let (runs, store) = (Runs::default(), Spy::new());
        let service = layer(store.clone())
            .with_key(source.clone())
            .layer(creating(&runs));

        let first = send(&service, without_key("one")).await;
        let second = send(&service, without_key("two")).await;

        assert_eq!(first.text(), "run 1: one", "{source:?}");
        assert_eq!(second.text(), "run 2: two", "{source:?}");
        assert!(!second.is_replay());
        assert_eq!(store.calls(), []);
    }
}

#[tokio::test]
async fn where_a_key_is_required_a_request_without_one_is_refused() {
    let sources = [
        KeyBy::default(),
        KeyBy::parts(|_| None),
        KeyBy::body(|_, _| None),
    ];
    for source in sources {
        let (runs, store) = (Runs::default(), Spy::new());
        let idempotency = layer(store.clone()).with_key(source.clone()).require_key();
        let service = idempotency.layer(creating(&runs));

        let refused = send(&service, without_key("{}")).await;

        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        assert_eq!(refused.rejection(), Some(RejectionKind::MissingKey));
        assert_eq!((runs.count(), store.calls()), (0, vec![]), "{source:?}");
    }
}

#[tokio::test]
async fn keys_up_to_255_characters_work_and_longer_ones_never_reach_the_store() {
    // High entropy is what an index row limit fails on; repeated bytes compress.
    let random: String = (0..3000u32)
        .map(|n| char::from_digit(n.wrapping_mul(2_654_435_761) >> 28, 16).expect("a hex digit"))
        .collect();
    let (runs, store) = (Runs::default(), Spy::new());
    let service = layer(store.clone()).layer(creating(&runs));
    for long in [&random[..256], &random, &"a".repeat(100_000)] {
        let refused = send(&service, post(long, "{}")).await;
        assert_eq!(refused.rejection(), Some(RejectionKind::InvalidKey));
    }
    assert_eq!((runs.count(), store.calls()), (0, vec![]));

    for _ in 0..2 {
        send(&service, post(&random[..255], "{}")).await;
        send(&service, post("a", "{}")).await;
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn a_key_outside_visible_ascii_is_refused() {
    let (runs, store) = (Runs::default(), Spy::new());
    let service = layer(store.clone()).layer(creating(&runs));
    for raw in [
        "тест".as_bytes(),
        b"a\xff",
        b"a b",
        b"a\tb",
        b"\"a\\u0062\"",
    ] {
        let refused = send(&service, with_lines(&[raw], "{}")).await;
        assert_eq!(
            refused.rejection(),
            Some(RejectionKind::InvalidKey),
            "{raw:?}"
        );
    }
    for text in ["a\0b", "a\u{7f}", "\u{202e}a", "a\n", ""] {
        let by_parts = KeyBy::parts(move |_| Some(text.to_owned()));
        let by_body = KeyBy::body(move |_, _| Some(text.to_owned()));
        for source in [by_parts, by_body] {
            let service = layer(store.clone()).with_key(source).layer(creating(&runs));
            let refused = send(&service, without_key("{}")).await;
            assert_eq!(
                refused.rejection(),
                Some(RejectionKind::InvalidKey),
                "{text:?}"
            );
        }
    }
    assert_eq!((runs.count(), store.calls()), (0, vec![]));
}

#[tokio::test]
async fn a_response_header_that_is_not_ascii_is_replayed_byte_by_byte() {
    let runs = Runs::default();
    let service = layer(MemoryStore::new()).layer(answering(&runs, |_, _, _| {
        let mut response = response(StatusCode::OK, "");
        let value = HeaderValue::from_bytes(b"K\xe4se").expect("a valid header value");
        response.headers_mut().insert("x-food", value);
        response
    }));

    send(&service, post("k", "{}")).await;
    let replay = send(&service, post("k", "{}")).await;

    assert!(replay.is_replay());
    assert_eq!(replay.head.headers["x-food"].as_bytes(), b"K\xe4se");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn the_quoted_and_the_bare_form_are_one_key_and_a_malformed_one_is_never_ignored() {
    let (runs, store) = (Runs::default(), Spy::new());
    let service = layer(store.clone()).layer(creating(&runs));
    for malformed in ["\"abc", "abc\"", "\"abc\"x", "\"abc\";p=", "a\"b"] {
        let refused = send(&service, post(malformed, "{}")).await;
        assert_eq!(
            refused.rejection(),
            Some(RejectionKind::InvalidKey),
            "{malformed}"
        );
    }
    assert_eq!((runs.count(), store.calls()), (0, vec![]));

    for same in [
        "\"abc\"",
        "abc",
        "\"abc\";p=1",
        "\"abc\";a;b=\"x\"",
        " abc ",
    ] {
        send(&service, post(same, "{}")).await;
        assert_eq!(runs.count(), 1, "{same}");
    }
    for other in ["ABC", "abc;p=1", ":YWJj:", "\"a\\\"b\"", "\"a\\\\b\""] {
        let before = runs.count();
        send(&service, post(other, "{}")).await;
        assert_eq!(runs.count(), before + 1, "{other}");
    }
}

#[tokio::test]
async fn only_the_configured_header_is_read_and_one_id_on_two_routes_never_replays() {
    let runs = Runs::default();
    let name = HeaderName::from_static("x-request-id");
    let request = |path: &str| {
        let request = Request::post(path).header("X-Request-Id", "group");
        request.body(Body::default()).expect("a valid request")
    };
    let correlated = layer(MemoryStore::new())
        .with_key(KeyBy::header(name))
        .layer(creating(&runs));

    let first = send(&correlated, request("/a")).await;
    let other = send(&correlated, request("/b")).await;
    assert_eq!(first.text(), "run 1: ");
    assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    for _ in 0..2 {
        assert!(!send(&correlated, post("k", "{}")).await.is_replay());
    }
    assert_eq!(runs.count(), 3);

    let default = layer(MemoryStore::new()).layer(creating(&runs));
    for _ in 0..2 {
        assert!(!send(&default, request("/a")).await.is_replay());
    }
    assert_eq!(runs.count(), 5);
}

#[tokio::test]
async fn a_format_can_demand_uuids() {
    let (runs, store) = (Runs::default(), Spy::new());
    let idempotency = layer(store.clone()).with_key_format(KeyFormat::uuid());
    let service = idempotency.layer(creating(&runs));

    let refused = send(&service, post("not-a-uuid", "{}")).await;
    assert_eq!(refused.rejection(), Some(RejectionKind::InvalidKey));
    assert!(refused.text().contains("not a UUID"), "{}", refused.text());
    assert_eq!((runs.count(), store.calls()), (0, vec![]));

    for _ in 0..2 {
        send(&service, post("8e03978e-40d5-43dd-bc93-6894a57f9324", "{}")).await;
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_webhook_event_is_handled_once_though_its_redelivery_differs() {
    let (runs, store) = (Runs::default(), MemoryStore::new());
    let event_id = KeyBy::body(|_, body: &[u8]| {
        let text = String::from_utf8_lossy(body);
        Some(text.split_once(' ')?.0.to_owned())
    });
    let service = layer(store).with_key(event_id).layer(creating(&runs));

    let first = send(&service, without_key("evt_1 try=1")).await;
    let redelivered = send(&service, without_key("evt_1 try=2")).await;
    let other = send(&service, without_key("evt_2 try=1")).await;

    assert_eq!(first.text(), "run 1: evt_1 try=1");
    assert!(redelivered.is_replay());
    assert_eq!(redelivered.body, first.body);
    assert_eq!(other.text(), "run 2: evt_2 try=1");
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn layers_with_two_namespaces_share_a_store_and_no_record() {
    let (runs, store) = (Runs::default(), MemoryStore::new());
    for namespace in ["", "a", "b", "a"] {
        let idempotency = layer(store.clone()).with_namespace(namespace);
        send(&idempotency.layer(creating(&runs)), post("k", "{}")).await;
    }
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn the_body_that_the_handler_gets_is_the_one_that_was_sent() {
    let runs = Runs::default();
    let service = layer(MemoryStore::new()).layer(answering(&runs, |_, _, body: Bytes| {
        response(StatusCode::OK, body)
    }));
    let sent: Vec<u8> = (0..=255).collect();
    let mut request = post("k", "");
    *request.body_mut() = Body::from(sent.clone());

    assert_eq!(send(&service, request).await.body, sent);
}
