//! The observability example: a real Prometheus scrapes it, and answers each query of the dashboard and of the alerts.
#![cfg(unix)]
#![allow(clippy::indexing_slicing, reason = "what is missing fails the test")]

mod server;
mod servers;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::Value;
use server::{Caller, LIMIT, example, fresh_key, listening};
use servers::Prometheus;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/observability");

/// The running example. It is killed when this is dropped.
struct App {
    client: Caller,
    address: std::net::SocketAddr,
    _process: Child,
}

impl App {
    async fn start() -> Self {
        Self::logging(Stdio::null()).await
    }

    async fn logging(log: impl Into<Stdio>) -> Self {
        let mut process = Command::new(example("observability"))
            .env("ADDR", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("a process");
        let address = listening(&mut process).await;
        Self {
            client: Caller::new(address),
            address,
            _process: process,
        }
    }

    fn charge(&self, path: &str, key: &str, card: &'static str) -> Request<Full<Bytes>> {
        let request = self.client.request(Method::POST, path);
        let request = request.header("idempotency-key", key).body(card.into());
        request.expect("a request")
    }

    async fn post(&self, path: &str, key: &str, card: &'static str) -> StatusCode {
        let answer = self.client.send(self.charge(path, key, card)).await;
        answer.status
    }

    async fn switch(&self, state: &str) {
        let request = self
            .client
            .request(Method::POST, &format!("/store/{state}"));
        let request = request.body(Full::default()).expect("a request");
        let answer = self.client.send(request).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
    }

    async fn metrics(&self) -> String {
        let request = self.client.request(Method::GET, "/metrics");
        let request = request.body(Full::default()).expect("a request");
        let answer = self.client.send(request).await;
        String::from_utf8(answer.body.to_vec()).expect("text")
    }

    /// Whether a gauge is at least so high.
    async fn reaches(&self, gauge: &str, value: f64) {
        let start = format!("tower_idempotency_{gauge} ");
        let reached = async {
            loop {
                let metrics = self.metrics().await;
                let mut values = metrics.lines().filter_map(|line| line.strip_prefix(&start));
                let now: f64 = values.next().expect("a gauge").parse().expect("a number");
                if now >= value {
                    break;
                }
            }
        };
        timeout(LIMIT, reached).await.expect("a gauge that rises");
    }

    /// Makes requests come to all ends that the example has.
    async fn all_ends(&self) {
        for card in [
            "visa",
            "declined",
            "error",
            "statement",
            "conflict",
            "panic",
        ] {
            let key = fresh_key();
            self.post("/charges", &key, card).await;
            self.post("/charges", &key, card).await;
            self.post("/charges", &key, "another card").await;
        }
        self.post("/charges", "", "visa").await;
        self.post("/charges", &fresh_key(), "hangs").await;

        let (slow, other) = (fresh_key(), fresh_key());
        let duplicate = async {
            self.reaches("in_flight_runs", 1.0).await;
            self.post("/charges", &slow, "slow").await
        };
        let (first, second) = tokio::join!(self.post("/charges", &slow, "slow"), duplicate);
        assert_eq!((first, second), (StatusCode::CREATED, StatusCode::CONFLICT));

        let outage = async {
            self.reaches("in_flight_runs", 1.0).await;
            self.switch("down").await;
            let refused = self.post("/charges", &fresh_key(), "visa").await;
            assert_eq!(refused, StatusCode::SERVICE_UNAVAILABLE);
            let unprotected = self.post("/quotes", &fresh_key(), "visa").await;
            assert_eq!(unprotected, StatusCode::CREATED);
        };
        let (owed, ()) = tokio::join!(self.post("/charges", &other, "slow"), outage);
        assert_eq!(owed, StatusCode::CREATED);
        self.reaches("owed_settlements", 1.0).await;

        self.switch("hangs").await;
        let refused = self.post("/charges", &fresh_key(), "visa").await;
        assert_eq!(refused, StatusCode::SERVICE_UNAVAILABLE);
        self.reaches("late_store_calls", 1.0).await;
    }
}

#[tokio::test]
async fn the_log_tells_the_end_of_each_run_with_its_outcome() {
    let (reader, log) = std::io::pipe().expect("a pipe");
    let app = App::logging(log).await;
    let charged = app.post("/charges", &fresh_key(), "visa").await;
    assert_eq!(charged, StatusCode::CREATED);
    let ended = tokio::task::spawn_blocking(|| {
        let mut lines = BufReader::new(reader).lines().map_while(Result::ok);
        lines.find(|line| line.contains("idempotency{record_key=") && line.contains("close"))
    });
    let ended = timeout(LIMIT, ended).await.expect("a line in time");
    let ended = ended.expect("no panic").expect("a line");
    assert!(ended.contains("outcome=\"saved\""), "{ended}");
}

/// What Prometheus answers.
struct Queries(Caller);

impl Queries {
    async fn get(&self, path: &str) -> Value {
        let request = self.0.request(Method::GET, &format!("/api/v1/{path}"));
        let answer = self
            .0
            .send(request.body(Full::default()).expect("a request"));
        let answer = answer.await.json();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The labels of each series that has a number.
    async fn series(&self, query: &str) -> Vec<BTreeMap<String, String>> {
        let encoded = query.bytes().map(|byte| format!("%{byte:02X}"));
        let path = format!("query?query={}", encoded.collect::<String>());
        let data = self.get(&path).await;
        let series = data["result"].as_array().expect("a vector").iter();
        let numbers = series.filter(|series| series["value"][1] != "NaN");
        let labels = numbers.map(|series| serde_json::from_value(series["metric"].clone()));
        labels.map(|labels| labels.expect("labels")).collect()
    }

    async fn active_alerts(&self) -> BTreeSet<String> {
        let data = self.get("alerts").await;
        let alerts = data["alerts"].as_array().expect("alerts").iter();
        alerts
            .map(|alert| text(&alert["labels"]["alertname"]))
            .collect()
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a string").to_owned()
}

/// A query of the dashboard, and the labels that its legend names.
struct Panel {
    title: String,
    query: String,
    labels: Vec<String>,
}

/// As Grafana sends them, with its variables replaced.
fn panels(dashboard: &Value) -> Vec<Panel> {
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().expect("targets").iter();
        targets.map(|target| (text(&panel["title"]), target))
    });
    let panels = targets.map(|(title, target)| {
        let query = text(&target["expr"]).replace("$job", ".*");
        let legend = text(&target["legendFormat"]);
        let labels = legend.split("{{").skip(1);
        Panel {
            title,
            query: query.replace("$__rate_interval", "1m"),
            labels: labels
                .map(|label| label.split("}}").next().unwrap_or_default().to_owned())
                .collect(),
        }
    });
    panels.collect()
}

/// Each value that a query compares a label with occurs in the scrape.
fn assert_values_occur(query: &str, metrics: &str) {
    assert!(!query.contains('$'), "a variable is left: {query}");
    let quoted = query.split('"').skip(1).step_by(2);
    for value in quoted.flat_map(|values| values.split('|')) {
        let occurs = metrics.contains(&format!("=\"{value}\""));
        assert!(occurs || value == ".*", "no label is {value}: {query}");
    }
}

#[tokio::test]
async fn each_query_of_the_dashboard_and_each_alert_finds_what_the_endpoint_shows() {
    let app = App::start().await;
    let file = |name| std::fs::read_to_string(Path::new(DIRECTORY).join(name)).expect("a file");
    let Some(prometheus) = Prometheus::start(app.address, &file("alerts.yml")) else {
        return;
    };
    let queries = Queries(Caller::new(prometheus.address()));
    let dashboard: Value = serde_json::from_str(&file("dashboard.json")).expect("JSON");
    let panels = panels(&dashboard);
    let mut open: Vec<&Panel> = panels.iter().collect();
    assert!(open.len() >= 10);

    // Before the first request: a rate needs to see them rise.
    let scraped = "count(tower_idempotency_requests_total{job=\"tests\"})";
    timeout(LIMIT, async {
        while queries.series(scraped).await.is_empty() {}
    })
    .await
    .expect("a scrape");
    app.all_ends().await;
    let metrics = app.metrics().await;
    for panel in &open {
        assert_values_occur(&panel.query, &metrics);
    }
    let names = metrics.lines().filter_map(|line| {
        let name = line.strip_prefix("# TYPE ")?.split_once(' ')?.0;
        name.starts_with("tower_idempotency_").then_some(name)
    });
    for name in names {
        let is_on_a_panel = panels.iter().any(|panel| panel.query.contains(name));
        assert!(is_on_a_panel, "{name}");
    }
    let rules = queries.get("rules").await;
    let rules = rules["groups"][0]["rules"]
        .as_array()
        .expect("rules")
        .clone();
    for rule in &rules {
        assert_values_occur(&text(&rule["query"]), &metrics);
        assert!(rule["labels"]["severity"].is_string(), "{rule}");
    }
    let mut silent: BTreeSet<_> = rules.iter().map(|rule| text(&rule["name"])).collect();
    assert!(silent.len() >= 5);

    let answered = async {
        while !open.is_empty() || !silent.is_empty() {
            let mut unanswered = Vec::new();
            for panel in open.iter().copied() {
                let series = queries.series(&panel.query).await;
                for label in &panel.labels {
                    let labelled = series.iter().all(|series| series.contains_key(label));
                    assert!(labelled, "{}: no label {label}", panel.title);
                }
                if series.is_empty() {
                    unanswered.push(panel);
                }
            }
            open = unanswered;
            for alert in queries.active_alerts().await {
                silent.remove(&alert);
            }
        }
    };
    let answered = timeout(LIMIT, answered).await;
    let open: Vec<_> = open.iter().map(|panel| &panel.query).collect();
    assert!(answered.is_ok(), "nothing for {open:#?} {silent:?}");
    app.switch("up").await;
}
