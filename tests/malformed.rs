//! Malformed requests over a real socket: each gets its documented answer, nothing is stored, and the server goes on.
#![cfg(feature = "memory")]
mod support;

use support::{
    faulty::{Call, FaultyStore},
    probe::Probe,
    server::{Server, read_all},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_idempotency::{IdempotencyLayer, MemoryStore, ScopeBy};

/// The request body limit of these tests.
const LIMIT: usize = 1000;

struct Setting {
    server: Server,
    spy: FaultyStore,
    store: MemoryStore,
    probe: Probe,
}

async fn setting() -> Setting {
    let (store, probe) = (MemoryStore::new(), Probe::new());
    let spy = FaultyStore::new(store.clone());
    let layer = IdempotencyLayer::new(spy.clone(), ScopeBy::single_tenant())
        .require_key()
        .with_request_body_limit(LIMIT);
    Setting {
        server: Server::start(layer, probe.clone()).await,
        spy,
        store,
        probe,
    }
}

impl Setting {
    async fn assert_untouched(&self, case: &str) {
        assert_eq!(self.spy.count(Call::Reserve), 0, "{case}");
        assert_eq!((self.probe.runs(), self.store.len()), (0, 0), "{case}");
        assert!(self.server.is_alive().await, "{case}");
    }
}

/// A charge with these header lines, each ended by CRLF.
fn charge(headers: &[u8], body: &[u8]) -> Vec<u8> {
    let line = b"POST /charges HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    [line, headers, b"\r\n", body].concat()
}

fn assert_answer(case: &str, answer: &str, status: &str, code: &str) {
    assert!(answer.starts_with(status), "{case}: {answer}");
    assert!(answer.contains(code), "{case}: {answer}");
}

#[tokio::test]
async fn a_key_that_is_missing_malformed_or_double_is_400_and_touches_no_store() {
    let setting = setting().await;
    let long = "k".repeat(256);
    let huge = "k".repeat(50_000);
    let (long, huge) = (long.as_bytes(), huge.as_bytes());
    let invalid: &[&[u8]] = &[
        b"",
        b" ",
        b"\t",
        b"\"\"",
        b"\" \"",
        b"\"abc",
        b"abc\"",
        b"\"a\"b\"",
        b"\"a\\",
        b"\"a\\x\"",
        b"\"abc\" trailing",
        b"\"abc\";",
        b"\"abc\";P=1",
        b"\"abc\",\"abc\"",
        b"K, K",
        b"K,K",
        b"a b",
        b"a\tb",
        b"\"a b\"",
        b"\xd1\x82\xd0\xb5\xd1\x81\xd1\x82",
        b"\xff",
        b"\"\xe4\"",
        long,
        huge,
    ];
    for key in invalid {
        let line = [b"Idempotency-Key: ", *key, b"\r\ncontent-length: 2\r\n"].concat();
        let case = key.escape_ascii().to_string();
        let answer = setting.server.exchange(&charge(&line, b"{}")).await;
        assert_answer(&case, &answer, "HTTP/1.1 400", "\"invalid_key\"");
        setting.assert_untouched(&case).await;
    }
    let lines: &[(&[u8], &str)] = &[
        (b"", "\"missing_key\""),
        (
            b"idempotency-key: K\r\nidempotency-key: K\r\n",
            "\"invalid_key\"",
        ),
        (
            b"idempotency-key: K\r\nIDEMPOTENCY-KEY: K\r\n",
            "\"invalid_key\"",
        ),
        (
            b"idempotency-key: K\r\nidempotency-key: L\r\n",
            "\"invalid_key\"",
        ),
        (
            b"idempotency-key: K\r\nidempotency-key:\r\n",
            "\"invalid_key\"",
        ),
        // What HTTP doesn't allow in a header never gets as far as the layer.
        (b"idempotency-key: a\0b\r\n", ""),
        (b"idempotency-key: a\x7fb\r\n", ""),
        (b"idempotency-key: a\x01b\r\n", ""),
        (b"idempotency-key: a\r\n b\r\n", ""),
        (b"idempotency-key : a\r\n", ""),
    ];
    for (lines, code) in lines {
        let head = [*lines, b"content-length: 2\r\n"].concat();
        let case = lines.escape_ascii().to_string();
        let answer = setting.server.exchange(&charge(&head, b"{}")).await;
        assert_answer(&case, &answer, "HTTP/1.1 400", code);
        setting.assert_untouched(&case).await;
    }
}

#[tokio::test]
async fn every_accepted_form_of_a_key_runs_and_two_forms_of_one_key_are_one() {
    let setting = setting().await;
    let longest = "k".repeat(255);
    let forms: &[(&str, &str)] = &[
        ("abc", "run 1"),
        ("\"abc\"", "run 1"),
        ("\"abc\";p=1", "run 1"),
        ("  abc  ", "run 1"),
        ("\"a\\\"b\"", "run 2"),
        ("\"a\\\\b\"", "run 3"),
        ("a\\b", "run 3"),
        (&longest, "run 4"),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "run 5"),
    ];
    for (key, run) in forms {
        let head = format!("idempotency-key: {key}\r\ncontent-length: 2\r\n");
        let request = charge(head.as_bytes(), b"{}");
        let answer = setting.server.exchange(&request).await;
        assert_answer(key, &answer, "HTTP/1.1 201", run);
    }
    assert_eq!((setting.probe.runs(), setting.store.len()), (5, 5));
}

/// What it is, header lines, and a body that ends the client's half of the connection.
type Broken<'a> = (&'a str, &'a [u8], &'a [u8]);

async fn assert_refused(broken: &[Broken<'_>], status: &str, code: &str) {
    let setting = setting().await;
    for (case, head, body) in broken {
        let head = [b"idempotency-key: k\r\n", *head].concat();
        let mut stream = setting.server.connect(&charge(&head, body)).await;
        drop(stream.shutdown().await);
        let answer = read_all(stream).await;
        assert_answer(case, &answer, status, code);
        setting.assert_untouched(case).await;
    }
    let good = charge(b"idempotency-key: k\r\ncontent-length: 2\r\n", b"{}");
    assert!(setting.server.exchange(&good).await.ends_with("run 1"));
}

const CHUNKED: &[u8] = b"transfer-encoding: chunked\r\n";

#[tokio::test]
async fn a_body_that_breaks_off_is_400_and_nothing_is_stored() {
    let broken: [Broken<'_>; 5] = [
        ("short", b"content-length: 10\r\n", b"{}"),
        ("no last chunk", CHUNKED, b"2\r\n{}\r\n"),
        ("half a chunk", CHUNKED, b"9\r\n{}"),
        ("no chunk size", CHUNKED, b"zz\r\n{}\r\n0\r\n\r\n"),
        ("a size over 64 bit", CHUNKED, b"11112222333344445\r\n{}"),
    ];
    assert_refused(&broken, "HTTP/1.1 400", "\"incomplete_body\"").await;
}

#[tokio::test]
async fn a_length_that_is_none_is_400_and_never_gets_as_far_as_the_layer() {
    let broken: [Broken<'_>; 3] = [
        ("no number", b"content-length: two\r\n", b"{}"),
        ("negative", b"content-length: -2\r\n", b"{}"),
        ("two", b"content-length: 2\r\ncontent-length: 3\r\n", b"{}"),
    ];
    assert_refused(&broken, "HTTP/1.1 400", "").await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_and_nothing_is_stored() {
    let over = vec![b'x'; LIMIT + 1];
    let size = format!("{:x}\r\n", over.len());
    let chunks = [size.as_bytes(), &over, b"\r\n0\r\n\r\n"].concat();
    let length = format!("content-length: {}\r\n", over.len());
    let gzip = format!("content-encoding: gzip\r\n{length}");
    let broken: [Broken<'_>; 4] = [
        ("at once", length.as_bytes(), &over),
        ("not sent", b"content-length: 99999999999\r\n", b""),
        ("in chunks", CHUNKED, &chunks),
        ("compressed", gzip.as_bytes(), &over),
    ];
    assert_refused(&broken, "HTTP/1.1 413", "\"body_too_large\"").await;
}

#[tokio::test]
async fn an_endless_body_is_refused_when_it_is_over_the_limit() {
    let setting = setting().await;
    let head = charge(b"idempotency-key: k\r\ntransfer-encoding: chunked\r\n", b"");
    let stream = setting.server.connect(&head).await;
    let (mut reading, mut writing) = stream.into_split();
    // It never ends by itself: only the server can stop it.
    let endless = tokio::spawn(async move {
        while writing.write_all(b"4\r\nmore\r\n").await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    let mut start = vec![0; 12];
    reading.read_exact(&mut start).await.expect("an answer");

    assert_eq!(start, b"HTTP/1.1 413");
    drop(reading);
    endless.await.expect("the server closed the connection");
    setting.assert_untouched("endless").await;
}

#[tokio::test]
async fn what_the_head_decides_is_answered_before_the_body_is_asked_for() {
    let setting = setting().await;
    let expecting = |key: &str| {
        let head = format!(
            "idempotency-key: {key}\r\ncontent-length: 10485760\r\nexpect: 100-continue\r\n"
        );
        charge(head.as_bytes(), b"")
    };
    for (key, status, code) in [
        ("K, K", "HTTP/1.1 400", "\"invalid_key\""),
        ("good", "HTTP/1.1 413", "\"body_too_large\""),
    ] {
        let answer = setting.server.exchange(&expecting(key)).await;
        assert_answer(key, &answer, status, code);
        assert!(!answer.contains("100 Continue"), "{answer}");
        setting.assert_untouched(key).await;
    }

    // A good one is told to go on.
    let head = b"idempotency-key: k\r\ncontent-length: 2\r\nexpect: 100-continue\r\n";
    let mut stream = setting.server.connect(&charge(head, b"")).await;
    let mut interim = vec![0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut interim).await.expect("an interim");
    assert_eq!(interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{}").await.expect("the body is sent");
    assert!(read_all(stream).await.ends_with("run 1"));
}
