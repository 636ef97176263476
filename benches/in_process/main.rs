//! What the layer costs inside one process, against the bare service and against the floor F: collecting the body and
//! hashing what identifies the request.
//!
//! `cargo bench --bench in_process` measures time, `cargo bench --bench in_process -- instructions` counts instructions
//! (with valgrind). Only the ratios of one run count. Under `cargo test --benches` the scenarios are checked, not measured.

mod concurrency;
mod measure;
mod scenarios;
mod service;

use std::env;

use tokio::runtime::{Builder, Runtime};

use crate::scenarios::Scenario;

fn main() {
    let measures = env::args().any(|text| text == "--bench");
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|text| text != "--bench")
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    match *arguments {
        [] if !measures => check(&runtime, &mut scenarios::paths()),
        [] => {
            time(&runtime, scenarios::paths());
            time(&runtime, runtime.block_on(scenarios::live_keys()));
            concurrency::equal_requests_at_once();
            concurrency::two_threads();
        }
        ["instructions"] => instructions(&runtime),
        ["once", name, requests] => {
            let mut scenarios = scenarios::paths();
            let scenario = scenarios.iter_mut().find(|scenario| scenario.name == name);
            let requests = requests.parse().expect("a number of requests");
            measure::once(&runtime, scenario.expect("a scenario's name"), requests);
        }
        _ => eprintln!("arguments: none, or `instructions`"),
    }
}

fn time(runtime: &Runtime, mut scenarios: Vec<Scenario>) {
    check(runtime, &mut scenarios);
    let samples = measure::time(runtime, &mut scenarios);
    print_table("ns", &scenarios, &samples);
}

fn instructions(runtime: &Runtime) {
    let mut scenarios = scenarios::paths();
    check(runtime, &mut scenarios);
    let count = |scenario: &Scenario| vec![measure::instructions(scenario.name)];
    let samples: Vec<_> = scenarios.iter().map(count).collect();
    print_table("Ir", &scenarios, &samples);
}

fn check(runtime: &Runtime, scenarios: &mut [Scenario]) {
    for scenario in scenarios {
        runtime.block_on(scenario.check());
    }
}

/// Medians, and medians of the ratios round by round.
fn print_table(unit: &str, scenarios: &[Scenario], samples: &[Vec<f64>]) {
    println!(
        "\n{:<24} {:>9}  {:>6}  {:>6}",
        "per request", unit, "ratio", "reach"
    );
    for (scenario, sample) in scenarios.iter().zip(samples) {
        let row = format!(
            "{:<24} {:>9.0}",
            scenario.name,
            median(sample.iter().copied())
        );
        let Some((against, reach)) = scenario.goal else {
            println!("{row}");
            continue;
        };
        let base = scenarios.iter().position(|other| other.name == against);
        let base = base
            .and_then(|base| samples.get(base))
            .expect("a row's name");
        let ratio = median(sample.iter().zip(base).map(|(it, base)| it / base));
        let reach = reach.map_or(String::new(), |reach| format!("{reach:.2}"));
        println!("{row}  {ratio:>6.2}  {reach:>6} × {against}");
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
