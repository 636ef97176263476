//! The proxy that other tests rest on does to requests and answers what those tests believe.
#![cfg(unix)]
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what is missing fails the test"
)]

mod http_proxy;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Bytes, routing};
use http::StatusCode;
use http_proxy::{Fault, Proxy};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

const PLAIN: &str =
    "POST /charges HTTP/1.1\r\nHost: us\r\nIdempotency-Key: k\r\nContent-Length: 8\r\n\r\namount=1";
const CHUNKED: &str = "POST /charges HTTP/1.1\r\nHost: us\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n\
                       4;x=y\r\namou\r\n4\r\nnt=1\r\n0\r\nTrailer: t\r\n\r\n";

/// Counts what came to `/charges`, whole or not, and echoes it.
#[derive(Clone, Debug, Default)]
struct Server {
    begun: Arc<watch::Sender<usize>>,
    whole: Arc<watch::Sender<usize>>,
}

impl Server {
    async fn start(&self) -> SocketAddr {
        let server = self.clone();
        let charge = async move |body: axum::body::Body| {
            server.begun.send_modify(|count| *count += 1);
            let body = axum::body::to_bytes(body, usize::MAX).await;
            let body = body.map_err(|_broken| StatusCode::BAD_REQUEST)?;
            server.whole.send_modify(|count| *count += 1);
            Ok::<Bytes, StatusCode>(body)
        };
        let app = Router::new().route("/charges", routing::post(charge));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }

    async fn begun(&self, count: usize) {
        let mut begun = self.begun.subscribe();
        let reached = timeout(LIMIT, begun.wait_for(|begun| *begun >= count)).await;
        drop(reached.expect("in time").expect("a server"));
    }

    fn whole(&self) -> usize {
        *self.whole.borrow()
    }
}

async fn send(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let sent = stream.write_all(request.as_bytes()).await;
    sent.expect("a request that is sent");
    stream
}

/// How a connection is once enough was read from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Closed,
    Reset,
}

/// No answer of these tests has it.
const NOTHING_IS: &str = "\0";

/// What comes until this is enough, or the connection has ended.
async fn read(stream: &mut TcpStream, enough: &str) -> (String, End) {
    let mut answer = Vec::new();
    let read = async {
        while !answer.ends_with(enough.as_bytes()) {
            match stream.read_buf(&mut answer).await {
                Ok(0) => return End::Closed,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return End::Reset,
                Err(error) => panic!("{error}"),
            }
        }
        End::Open
    };
    let end = timeout(LIMIT, read).await.expect("an end in time");
    (String::from_utf8_lossy(&answer).into_owned(), end)
}

/// A charge on a connection of its own, answered as a whole.
async fn charge(address: SocketAddr) -> TcpStream {
    let mut stream = send(address, PLAIN).await;
    let (answer, end) = read(&mut stream, "amount=1").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(end, End::Open);
    stream
}

#[tokio::test]
async fn what_passes_is_unchanged_and_kept() {
    let server = Server::default();
    let proxy = Proxy::start(server.start().await).await;

    let mut stream = charge(proxy.address()).await;
    let sent = stream.write_all(CHUNKED.as_bytes()).await;
    sent.expect("the same connection");
    let (chunked, _) = read(&mut stream, "amount=1").await;

    assert!(chunked.starts_with("HTTP/1.1 200"), "{chunked}");
    let requests = proxy.requests("POST /charges");
    let bytes = |index: usize| [&*requests[index].head, &requests[index].body].concat();
    assert_eq!(bytes(0), PLAIN.as_bytes());
    assert_eq!(bytes(1), CHUNKED.as_bytes());
    assert_eq!(requests[1].key(), "k");
    assert_eq!(server.whole(), 2);
}

#[tokio::test]
async fn each_fault_strikes_where_it_says() {
    let cases = [
        (Fault::LoseRequest, 0, "", End::Closed),
        (Fault::CutRequest, 0, "", End::Reset),
        (Fault::LoseAnswer, 1, "", End::Closed),
        (Fault::ResetAnswer, 1, "", End::Reset),
        (Fault::CutAnswer, 1, "amou", End::Reset),
        (
            Fault::answer(StatusCode::CONFLICT, &[], "no"),
            0,
            "no",
            End::Open,
        ),
    ];
    for (fault, effects, rest, end) in cases {
        let server = Server::default();
        let proxy = Proxy::start(server.start().await).await;
        proxy.script("POST /charges", [fault.clone(), Fault::Pass]);

        let mut stream = send(proxy.address(), PLAIN).await;
        let enough = if end == End::Open { rest } else { NOTHING_IS };
        let (answer, ended) = read(&mut stream, enough).await;
        proxy.struck(1).await;

        assert_eq!(ended, end, "{fault:?}");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        assert_eq!(body, rest, "{fault:?}");
        assert_eq!(server.whole(), effects, "{fault:?}");
        drop(charge(proxy.address()).await);
        assert_eq!(proxy.requests("POST /charges").len(), 2, "{fault:?}");
    }
}

#[tokio::test]
async fn half_of_a_cut_request_reaches_the_server() {
    for (request, half) in [(PLAIN, "amou"), (CHUNKED, "4;x=y\r\namou\r\n")] {
        let server = Server::default();
        let proxy = Proxy::start(server.start().await).await;
        proxy.script("POST /charges", [Fault::CutRequest]);

        drop(send(proxy.address(), request).await);
        server.begun(1).await;

        assert_eq!(proxy.requests("POST /charges")[0].body_text(), half);
        assert_eq!(server.whole(), 0);
    }
}

#[tokio::test]
async fn a_held_answer_waits_until_it_is_let_go() {
    let server = Server::default();
    let proxy = Proxy::start(server.start().await).await;
    proxy.script("POST /charges", [Fault::HoldAnswer]);

    let mut stream = send(proxy.address(), PLAIN).await;
    proxy.struck(1).await;
    assert_eq!(server.whole(), 1);
    let early = stream.try_read(&mut [0]);
    assert!(early.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));

    proxy.release();
    let (answer, _) = read(&mut stream, "amount=1").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_held_request_arrives_after_its_client_has_gone() {
    let server = Server::default();
    let proxy = Proxy::start(server.start().await).await;
    proxy.script("POST /charges", [Fault::HoldRequest]);

    let stream = send(proxy.address(), PLAIN).await;
    proxy.struck(1).await;
    assert_eq!(server.whole(), 0);
    drop(stream);
    proxy.release();

    server.begun(1).await;
}

#[tokio::test]
async fn it_goes_down_and_comes_back_on_the_same_port() {
    let server = Server::default();
    let proxy = Proxy::start(server.start().await).await;
    let mut open = charge(proxy.address()).await;

    proxy.refuse().await;
    let refused = TcpStream::connect(proxy.address()).await;
    assert!(refused.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused));
    let (_, end) = read(&mut open, NOTHING_IS).await;
    assert_eq!(end, End::Closed);

    proxy.accept().await;
    drop(charge(proxy.address()).await);
}

#[tokio::test]
async fn the_server_learns_that_a_client_has_gone() {
    /// Told when its handler is dropped.
    struct Gone(watch::Sender<bool>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.send_replace(true);
        }
    }
    let (runs, gone) = (watch::Sender::new(false), watch::Sender::new(false));
    let (started, told) = (runs.clone(), gone.clone());
    let endless = async move || {
        let guard = Gone(told.clone());
        started.send_replace(true);
        std::future::pending::<()>().await;
        drop(guard);
    };
    let app = Router::new().route("/charges", routing::post(endless));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    let proxy = Proxy::start(address).await;

    let stream = send(proxy.address(), PLAIN).await;
    let seen = async |signal: &watch::Sender<bool>| {
        let mut signal = signal.subscribe();
        let seen = timeout(LIMIT, signal.wait_for(|seen| *seen)).await;
        drop(seen.expect("in time").expect("a sender that is held"));
    };
    seen(&runs).await;
    drop(stream);
    seen(&gone).await;
}
