//! What the layer costs a real server: CPU time of the server's thread per request, over loopback and one connection.
//!
//! `cargo bench --bench http`. Two equal axum servers, one with the layer and one without, share that thread and take turns.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use axum::{
    Router,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::{get, post},
};
use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Builder;
use tower_idempotency::{IdempotencyLayer, MemoryStore, ScopeBy};

const ROUNDS: usize = 101;
const SLICE: usize = 300;

static RUNS: AtomicUsize = AtomicUsize::new(0);

fn main() {
    let [mut bare, mut layered] = serve().map(Client::connect);
    let mut keys = 0..;
    let mut fresh = move || keys.next();

    // What each slice is about, shown once before it is measured.
    assert_eq!(handler_runs(|| bare.post(Some(0), false)), 1);
    assert_eq!(handler_runs(|| layered.post(None, false)), 1);
    assert_eq!(handler_runs(|| layered.post(fresh(), false)), 1);
    assert_eq!(handler_runs(|| layered.post(Some(0), true)), 0);

    let mut times: [Vec<f64>; 5] = Default::default();
    for _ in 0..ROUNDS {
        let slices = [
            bare.server_time(|client| client.post(Some(0), false)),
            layered.server_time(|client| client.post(Some(0), true)),
            layered.server_time(|client| client.post(fresh(), false)),
            bare.server_time(|client| client.post(None, false)),
            layered.server_time(|client| client.post(None, false)),
        ];
        for (times, slice) in times.iter_mut().zip(slices) {
            times.push(slice);
        }
    }
    let [without, replay, first, without_key, no_key] = &times;
    println!(
        "\n{:<24} {:>9}  {:>6}  {:>6}",
        "server CPU per request", "ns", "ratio", "reach"
    );
    for (name, times, base, reach) in [
        ("without the layer", without, without, ""),
        ("replay", replay, without, "1.15"),
        ("first, on a task", first, without, "1.90"),
        ("without it, no key", without_key, without_key, ""),
        ("no key", no_key, without_key, "1.05"),
    ] {
        let ratios = times.iter().zip(base).map(|(time, base)| time / base);
        let (time, ratio) = (median(times.clone()), median(ratios.collect()));
        println!("{name:<24} {time:>9.0}  {ratio:>6.2}  {reach:>6}");
    }
}

/// Starts the servers, without the layer and with it.
fn serve() -> [SocketAddr; 2] {
    let listener = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("non-blocking");
        listener
    };
    let listeners = [listener(), listener()];
    let addresses = listeners
        .each_ref()
        .map(|listener| listener.local_addr().expect("an address"));
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let [bare, layered] =
                listeners.map(|it| tokio::net::TcpListener::from_std(it).expect("a listener"));
            let layer = IdempotencyLayer::new(MemoryStore::new(), ScopeBy::single_tenant());
            let (bare, layered) = tokio::join!(
                axum::serve(bare, router()),
                axum::serve(layered, router().layer(layer)),
            );
            bare.and(layered).expect("servers that go on");
        });
    });
    addresses
}

fn router() -> Router {
    Router::new()
        .route("/charges", post(charge))
        .route("/cpu", get(cpu))
}

async fn charge(body: Bytes) -> impl IntoResponse {
    RUNS.fetch_add(1, Ordering::SeqCst);
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::LOCATION, "/charges/1"),
    ];
    (StatusCode::CREATED, headers, "x".repeat(body.len() + 100))
}

/// The time that this thread, the servers', has used, in nanoseconds.
async fn cpu() -> String {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec * 1_000_000_000 + time.tv_nsec).to_string()
}

fn handler_runs(request: impl FnOnce()) -> usize {
    let before = RUNS.load(Ordering::SeqCst);
    request();
    RUNS.load(Ordering::SeqCst) - before
}

/// A connection that is kept open.
struct Client(TcpStream);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Self(stream)
    }

    /// What a request costs the server, in nanoseconds of CPU time.
    fn server_time(&mut self, mut request: impl FnMut(&mut Self)) -> f64 {
        let before = self.cpu();
        for _ in 0..SLICE {
            request(self);
        }
        (self.cpu() - before) / SLICE as f64
    }

    fn post(&mut self, key: Option<u64>, is_replay: bool) {
        let body = "x".repeat(200);
        let key = key.map_or_else(String::new, |key| {
            format!("idempotency-key: 8e03978e-40d5-43e8-bc93-{key:012x}\r\n")
        });
        let (head, answer) = self.exchange(&format!(
            "POST /charges HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{key}\r\n{body}",
            body.len()
        ));
        assert!(head.starts_with("HTTP/1.1 201"), "{head}");
        assert_eq!(
            head.contains("idempotent-replayed: true"),
            is_replay,
            "{head}"
        );
        assert_eq!(answer.len(), 300);
    }

    fn cpu(&mut self) -> f64 {
        let (_, answer) = self.exchange("GET /cpu HTTP/1.1\r\nhost: localhost\r\n\r\n");
        answer.parse().expect("a number")
    }

    /// Sends a request, and reads the head of its response and then as much as the head announces.
    fn exchange(&mut self, request: &str) -> (String, String) {
        self.0
            .write_all(request.as_bytes())
            .expect("an open connection");
        let mut text = String::new();
        let mut buffer = [0; 4096];
        loop {
            let size = self.0.read(&mut buffer).expect("a response");
            assert_ne!(size, 0, "the server closed the connection");
            text += str::from_utf8(buffer.get(..size).unwrap_or_default()).expect("text");
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.split("content-length: ").nth(1).expect("a length");
                let length = length.split("\r\n").next().map(str::parse);
                if Some(Ok(body.len())) == length {
                    return (head.to_owned(), body.to_owned());
                }
            }
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
