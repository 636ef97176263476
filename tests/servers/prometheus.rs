//! A Prometheus that scrapes one address.

use std::{net::SocketAddr, sync::Once};

use super::{
    external,
    place::directory_of,
    port::Port,
    process::{Process, Program},
};

/// The first line is the configuration, the others are the rules.
const RUN: &str = r#"
printf '%s\n' "$SETTINGS" | { read -r configuration; echo "$configuration" >prometheus.yml; cat >rules.yml; }
exec prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address="127.0.0.1:$PORT"
"#;

/// A Prometheus. It ends when it is dropped.
#[derive(Debug)]
pub struct Prometheus(Process);

impl Prometheus {
    /// Scrapes `/metrics` there several times a second, as job `tests`, and evaluates these rules as often. `None` if there is no
    /// Prometheus on this machine.
    pub fn start(target: SocketAddr, rules: &str) -> Option<Self> {
        let Some(programs) = directory_of(&["prometheus"]) else {
            return external::missing("Prometheus");
        };
        static TOLD: Once = Once::new();
        TOLD.call_once(|| external::tell(&external::version_of(&programs.join("prometheus"))));
        let configuration = format!(
            "{{ global: {{ scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms }}, \
             rule_files: [rules.yml], \
             scrape_configs: [{{ job_name: tests, static_configs: [{{ targets: ['{target}'] }}] }}] }}"
        );
        Some(Self(Process::start(&Program {
            name: "prometheus",
            user: "prometheus",
            directories: vec![programs],
            install: "true",
            run: RUN,
            stop: "KILL",
            settings: format!("{configuration}\n{rules}"),
            port: Port::free,
            is_ready,
        })))
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.0.port()))
    }
}

/// One that doesn't get the port ends before it says so.
fn is_ready(process: &Process) -> bool {
    let log = std::fs::read_to_string(process.directory().join("log")).unwrap_or_default();
    log.contains("Server is ready to receive web requests")
}
