//! Answers and replays as they are on the wire, from a plain hyper server.
#![cfg(feature = "memory")]

mod support;

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use support::{
    Runs,
    body::{Script, Step},
    handler::{answering, layer},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::Layer;
use tower_idempotency::MemoryStore;

/// Serves, over HTTP/1.1 and HTTP/2, what the closure answers to each path, behind the layer.
async fn serve(
    runs: &Runs,
    answer: impl Fn(&str) -> Response<Script> + Clone + Send + Sync + 'static,
) -> SocketAddr {
    let handler = answering(runs, move |_, parts, _| answer(parts.uri.path()));
    let service = layer(MemoryStore::new()).layer(handler);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let connection = server.serve_connection(TokioIo::new(stream), service);
                // How it ends is up to the client.
                connection.await.ok();
            });
        }
    });
    address
}

/// What the server sends, byte by byte, to requests on one connection, the last of which closes it.
async fn exchange(address: SocketAddr, paths: &[&str]) -> String {
    let mut requests = String::new();
    for (number, path) in (1..).zip(paths) {
        let last = if number == paths.len() {
            "connection: close\r\n"
        } else {
            ""
        };
        requests += &format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\nidempotency-key: {path}\r\ncontent-length: 2\r\n{last}\r\n{{}}"
        );
    }
    exchange_bytes(address, &requests).await
}

async fn exchange_bytes(address: SocketAddr, requests: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a server");
    stream
        .write_all(requests.as_bytes())
        .await
        .expect("a reader");
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.expect("an end");
    String::from_utf8(received).expect("text")
}

/// Head lines in lower case, and the body.
fn parse(response: &str) -> (Vec<String>, &str) {
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    (head.lines().map(str::to_ascii_lowercase).collect(), body)
}

fn count(lines: &[String], name: &str) -> usize {
    lines
        .iter()
        .filter(|line| line.starts_with(&format!("{name}:")))
        .count()
}

fn with_status(status: u16, steps: impl IntoIterator<Item = Step>) -> Response<Script> {
    let mut response = Response::new(Script::new(steps));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

#[tokio::test]
async fn a_streamed_answer_is_replayed_with_one_right_length() {
    let runs = Runs::default();
    let address = serve(&runs, |path| {
        let mut response = with_status(201, [Step::Data("hello "), Step::Data("world")]);
        let headers = response.headers_mut();
        if path == "/with-length" {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("11"));
        }
        headers.insert("x-kept", HeaderValue::from_static("1"));
        response
    })
    .await;
    for path in ["/", "/with-length"] {
        for replayed in [0, 1] {
            let response = exchange(address, &[path]).await;
            let (lines, body) = parse(&response);
            assert_eq!(lines[0], "http/1.1 201 created");
            assert_eq!(body, "hello world");
            assert_eq!(count(&lines, "content-length"), 1, "{response}");
            assert!(lines.contains(&"content-length: 11".to_owned()));
            assert_eq!(count(&lines, "transfer-encoding"), 0);
            assert_eq!(count(&lines, "date"), 1);
            assert_eq!(count(&lines, "x-kept"), 1);
            assert_eq!(count(&lines, "idempotent-replayed"), replayed);
        }
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn a_replay_leaves_its_connection_usable() {
    let runs = Runs::default();
    let address = serve(&runs, |path| match path {
        "/empty" => with_status(204, []),
        _ => with_status(200, [Step::Data("x")]),
    })
    .await;

    let paths = ["/a", "/a", "/empty", "/empty", "/a", "/b"];
    let received = exchange(address, &paths).await;

    let statuses: Vec<_> = received
        .match_indices("HTTP/1.1 ")
        .map(|(at, _)| &received[at + 9..at + 12])
        .collect();
    assert_eq!(statuses, ["200", "200", "204", "204", "200", "200"]);
    assert_eq!(received.matches("idempotent-replayed: true").count(), 3);
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn answers_without_a_body_have_none_and_no_length_on_the_wire() {
    let runs = Runs::default();
    let address = serve(&runs, |path| match path {
        "/204" => with_status(204, []),
        _ => with_status(304, []),
    })
    .await;
    for path in ["/204", "/304"] {
        for replayed in [0, 1] {
            let response = exchange(address, &[path]).await;
            let (lines, body) = parse(&response);
            assert!(lines[0].contains(&path[1..]));
            assert_eq!(body, "");
            assert_eq!(count(&lines, "content-length"), 0, "{response}");
            assert_eq!(count(&lines, "transfer-encoding"), 0);
            assert_eq!(count(&lines, "idempotent-replayed"), replayed);
        }
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn a_body_over_the_limit_arrives_whole() {
    const CHUNK: &str = "0123456789abcdef";
    let runs = Runs::default();
    let address = serve(&runs, |_| {
        with_status(200, vec![Step::Data(CHUNK); 1 << 17])
    })
    .await;

    let mut stream = TcpStream::connect(address).await.expect("a server");
    let request = b"POST / HTTP/1.0\r\nhost: test\r\nidempotency-key: k\r\n\r\n";
    stream.write_all(request).await.expect("a reader");
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.expect("an end");

    let received = String::from_utf8(received).expect("text");
    let (_, body) = parse(&received);
    assert_eq!(body.len(), CHUNK.len() << 17);
    assert!(
        body.as_bytes()
            .chunks(CHUNK.len())
            .all(|chunk| chunk == CHUNK.as_bytes())
    );
    assert_eq!(runs.count(), 1);
}

/// One request over HTTP/2.
async fn exchange_http2(address: SocketAddr, path: &str) -> Response<Incoming> {
    let stream = TcpStream::connect(address).await.expect("a server");
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::post(format!("http://test{path}")).header("idempotency-key", path);
    let request = request
        .body(Full::new(Bytes::from("{}")))
        .expect("a valid request");
    sender.send_request(request).await.expect("an answer")
}

#[tokio::test]
async fn an_answer_recorded_over_http_1_is_replayed_over_http_2() {
    let runs = Runs::default();
    let address = serve(&runs, |_| {
        let mut response = with_status(201, [Step::Data("made")]);
        let headers = response.headers_mut();
        // All of these are errors in HTTP/2.
        headers.insert(
            header::CONNECTION,
            HeaderValue::from_static("keep-alive, x-hop"),
        );
        headers.insert("keep-alive", HeaderValue::from_static("timeout=5"));
        headers.insert("x-hop", HeaderValue::from_static("1"));
        headers.insert(header::LOCATION, HeaderValue::from_static("/1"));
        response
    })
    .await;

    let first = exchange(address, &["/"]).await;
    let replay = exchange_http2(address, "/").await;

    assert_eq!(parse(&first).1, "made");
    assert_eq!(
        (replay.version(), replay.status()),
        (Version::HTTP_2, StatusCode::CREATED)
    );
    let mut headers = replay.headers().clone();
    headers.remove(header::DATE);
    let expected = [
        ("location", "/1"),
        ("idempotent-replayed", "true"),
        ("content-length", "4"),
    ];
    let expected = expected.map(|(name, value)| {
        (
            name.parse().expect("a name"),
            HeaderValue::from_static(value),
        )
    });
    assert_eq!(headers, HeaderMap::from_iter(expected));
    let body = replay.collect().await.expect("a body").to_bytes();
    assert_eq!(body, "made");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn trailers_are_sent_and_replayed_over_http_2() {
    let runs = Runs::default();
    let trailers = HeaderMap::from_iter([(header::ETAG, HeaderValue::from_static("\"e\""))]);
    let address = serve(&runs, {
        let trailers = trailers.clone();
        move |_| with_status(200, [Step::Data("data"), Step::Trailers(trailers.clone())])
    })
    .await;
    for replayed in [false, true] {
        let answer = exchange_http2(address, "/").await;
        assert_eq!(
            answer.headers().contains_key("idempotent-replayed"),
            replayed
        );
        let body = answer.collect().await.expect("a body");
        assert_eq!(body.trailers(), Some(&trailers));
        assert_eq!(body.to_bytes(), "data");
    }
    assert_eq!(runs.count(), 1);
}

/// hyper sends trailers over HTTP/1 to who asks for them (`TE`), if the head names them (`Trailer`) and gives no length.
#[tokio::test]
async fn over_http_1_trailers_are_sent_with_the_first_answer_and_a_replay_ends_without() {
    let runs = Runs::default();
    let address = serve(&runs, |_| {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("7"));
        let mut response = with_status(201, [Step::Data("hello"), Step::Trailers(trailers)]);
        let names = HeaderValue::from_static("x-checksum");
        response.headers_mut().insert(header::TRAILER, names);
        response
    })
    .await;
    let request = |key: &str| {
        format!(
            "POST / HTTP/1.1\r\nhost: test\r\nte: trailers\r\n{key}content-length: 2\r\nconnection: close, te\r\n\r\n{{}}"
        )
    };
    let sent = "5\r\nhello\r\n0\r\nx-checksum: 7\r\n\r\n";
    let whole = "5\r\nhello\r\n0\r\n\r\n";

    for (key, named, expected) in [
        ("", 1, sent),
        ("idempotency-key: k\r\n", 1, sent),
        ("idempotency-key: k\r\n", 0, whole),
    ] {
        let response = exchange_bytes(address, &request(key)).await;
        let (lines, body) = parse(&response);
        assert_eq!(body, expected, "{response}");
        assert_eq!(count(&lines, "trailer"), named, "{response}");
        assert_eq!(count(&lines, "content-length"), 0, "{response}");
    }
    assert_eq!(runs.count(), 2, "one without a key");
}

#[tokio::test]
async fn a_refusal_is_a_whole_http_message() {
    let runs = Runs::default();
    let address = serve(&runs, |_| with_status(200, [])).await;

    let response = exchange(address, &["/a,b"]).await;

    let (lines, body) = parse(&response);
    assert_eq!(lines[0], "http/1.1 400 bad request");
    assert!(lines.contains(&format!("content-length: {}", body.len())));
    assert!(lines.contains(&"content-type: application/problem+json".to_owned()));
    assert!(body.contains("\"code\":\"invalid_key\""), "{body}");
    assert_eq!(runs.count(), 0);
}
