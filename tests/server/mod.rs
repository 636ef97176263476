//! Examples as processes of their own, and clients that talk to it over real sockets.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses some of it"
)]
#![allow(clippy::indexing_slicing, reason = "what is missing fails the test")]

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
    task::JoinHandle,
    time::timeout,
};
use uuid::Uuid;

/// Far longer than anything here takes.
pub const LIMIT: Duration = Duration::from_secs(60);

/// An example, as cargo builds it beside the tests: `target/debug/deps/this-test` and `target/debug/examples/name`.
///
/// All tests together have it built; a single test does not, and must not pass by an old one.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.ancestors().nth(2).expect("the profile's directory");
    let example = profile.join("examples").join(name);
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified());
    let built = changed(&example).ok();
    let sources = std::fs::read_to_string(example.with_extension("d")).unwrap_or_default();
    let stale = |source: &str| changed(Path::new(source)).ok() > built;
    assert!(
        built.is_some() && !sources.split_whitespace().skip(1).any(stale),
        "{} is missing or old: `cargo build --example {name}` makes it",
        example.display()
    );
    example
}

/// Where a server listens, as it tells when it does.
pub async fn listening(server: &mut Child) -> SocketAddr {
    let output = server.stdout.take().expect("its output");
    let mut lines = BufReader::new(output).lines();
    let told = async {
        loop {
            let line = lines.next_line().await.expect("its output");
            let line = line.expect("a server that starts");
            if let Some(address) = line.strip_prefix("listening on http://") {
                return address.parse().expect("an address");
            }
        }
    };
    timeout(LIMIT, told).await.expect("a server that starts")
}

/// A client that keeps no connections, so that each request is its own.
#[derive(Clone)]
pub struct Caller {
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Caller {
    pub fn new(address: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build_http();
        Self { address, client }
    }

    pub fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
    }

    pub async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer, Unanswered> {
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| {
                if error.is_connect() {
                    Unanswered::NotSent
                } else {
                    Unanswered::Broken
                }
            })?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|_broken| Unanswered::Broken)?;
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            })
        };
        timeout(LIMIT, exchange).await.expect("an end in time")
    }

    /// None if there was no whole answer.
    pub async fn try_send(&self, request: Request<Full<Bytes>>) -> Option<Answer> {
        self.exchange(request).await.ok()
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        self.try_send(request).await.expect("an answer")
    }

    pub fn keyed(&self, path: &str, account: &str, key: &str, body: &str) -> Request<Full<Bytes>> {
        self.request(Method::POST, path)
            .header(header::AUTHORIZATION, format!("Bearer {account}"))
            .header(header::CONTENT_TYPE, "application/json")
            .header("idempotency-key", key)
            .body(Full::from(body.to_owned()))
            .expect("a request")
    }

    /// A charge of Alice's.
    pub async fn charge(&self, key: &str, order: &str) -> Answer {
        self.send(self.keyed("/charges", "alice", key, order)).await
    }

    pub async fn refund(&self, account: &str, key: &str, charge: &str) -> Answer {
        let order = format!(r#"{{"charge":"{charge}"}}"#);
        let request = self.keyed("/refunds", account, key, &order);
        self.send(request).await
    }

    pub async fn get(&self, account: &str, path: &str) -> Answer {
        let request = self
            .request(Method::GET, path)
            .header(header::AUTHORIZATION, format!("Bearer {account}"))
            .body(Full::default());
        self.send(request.expect("a request")).await
    }

    /// Starts a charge that takes two seconds, and comes back when it is running.
    ///
    /// It is sent twice at once: the one that is told so knows that the other runs.
    pub async fn start_slow(&self, key: &str) -> JoinHandle<Answer> {
        let [mut one, mut other] = [(); 2].map(|()| {
            let (client, key) = (self.clone(), key.to_owned());
            tokio::spawn(async move { client.charge(&key, &order("tok_slow")).await })
        });
        let (refused, running) = tokio::select! {
            refused = &mut one => (refused, other),
            refused = &mut other => (refused, one),
        };
        let refused = refused.expect("an answer");
        assert_eq!(refused.code(), "in_flight");
        assert_eq!(refused.headers[header::RETRY_AFTER], "1");
        running
    }
}

/// Why there is no whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Nobody listened.
    NotSent,
    /// The connection ended, after the request was sent perhaps.
    Broken,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    pub fn id(&self) -> String {
        self.json()["id"].as_str().expect("an id").to_owned()
    }

    /// The code of a problem; empty for anything else.
    pub fn code(&self) -> String {
        if !self.is_problem() {
            return String::new();
        }
        self.json()["code"].as_str().expect("a code").to_owned()
    }

    pub fn is_problem(&self) -> bool {
        self.headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|value| value == "application/problem+json")
    }

    pub fn is_replay(&self) -> bool {
        self.headers
            .get("idempotent-replayed")
            .is_some_and(|value| value == "true")
    }

    /// What must be the same for all who ask with one key: everything but the date and the mark of a replay.
    pub fn lasting(&self) -> (StatusCode, Vec<(String, Bytes)>, Bytes) {
        let mut headers: Vec<_> = self
            .headers
            .iter()
            .filter(|(name, _)| *name != "date" && *name != "idempotent-replayed")
            .map(|(name, value)| (name.to_string(), Bytes::copy_from_slice(value.as_bytes())))
            .collect();
        headers.sort();
        (self.status, headers, self.body.clone())
    }
}

/// A key that nobody used before.
pub fn fresh_key() -> String {
    Uuid::new_v4().to_string()
}

pub fn order(card: &str) -> String {
    format!(r#"{{"amount":1000,"currency":"eur","card":"{card}"}}"#)
}
