//! How often a request allocates, with the layer and without: `cargo bench --bench allocations`.
//!
//! A program of its own, because an allocator that counts would be in the numbers of the others.

#[expect(dead_code, reason = "the benchmark of times uses the rest")]
#[path = "in_process/scenarios.rs"]
mod scenarios;
#[path = "in_process/service.rs"]
mod service;

use tokio::runtime::{Builder, Runtime};

use crate::scenarios::Scenario;

fn main() {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let mut scenarios = scenarios::paths();
    let counts: Vec<(&str, u64)> = scenarios
        .iter_mut()
        .map(|scenario| (scenario.name, allocations(&runtime, scenario)))
        .collect();
    let count = |name: &str| {
        counts
            .iter()
            .find(|(other, _)| *other == name)
            .map(|row| row.1)
    };

    println!("\n{:<24} allocations", "per request");
    for (name, allocations) in &counts {
        println!("{name:<24} {allocations:>11}");
    }
    assert_eq!(count("no key"), count("bare, no key"));
    assert_eq!(count("safe method"), count("bare GET"));
}

/// Per request, by the difference of two runs.
fn allocations(runtime: &Runtime, scenario: &mut Scenario) -> u64 {
    runtime.block_on(scenario.check());
    let mut count = |requests: usize| {
        let run = || _ = runtime.block_on(scenario.run(requests));
        allocation_counter::measure(run).count_total
    };
    (count(2_000) - count(1_000)) / 1_000
}
