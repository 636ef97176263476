//! Two ways to measure: time, in slices that take turns, and instructions, counted by callgrind.

use std::{
    env,
    process::{self, Command},
    time::Instant,
};

use tokio::runtime::Runtime;

use crate::scenarios::Scenario;

/// How often each scenario has its turn, and for how many requests.
const ROUNDS: usize = 101;
const SLICE: usize = 1_000;

/// The two runs whose difference is free of what starting and ending cost.
const RUNS: (usize, usize) = (1_000, 3_000);

/// Nanoseconds per request, round by round, for each scenario.
pub(crate) fn time(runtime: &Runtime, scenarios: &mut [Scenario]) -> Vec<Vec<f64>> {
    let mut samples = vec![Vec::with_capacity(ROUNDS); scenarios.len()];
    for _ in 0..ROUNDS {
        for (scenario, samples) in scenarios.iter_mut().zip(&mut samples) {
            runtime.block_on(async {
                scenario.prepare().await;
                let start = Instant::now();
                scenario.run(SLICE).await;
                samples.push(start.elapsed().as_nanos() as f64 / SLICE as f64);
            });
        }
    }
    samples
}

/// Instructions per request. This program starts itself under callgrind, see [`once`].
pub(crate) fn instructions(scenario: &str) -> f64 {
    let (few, many) = RUNS;
    let counted = callgrind(scenario, many) - callgrind(scenario, few);
    counted as f64 / (many - few) as f64
}

fn callgrind(scenario: &str, requests: usize) -> u64 {
    let program = env::current_exe().expect("this program's path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["once", scenario, &requests.to_string()])
        .output()
        .expect("valgrind to start");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    let count = report.split("Collected :").nth(1);
    let count = count.and_then(|rest| rest.split_whitespace().next());
    count
        .and_then(|count| count.parse().ok())
        .expect("callgrind's count")
}

/// What callgrind looks at. It ends without dropping the store: emptying it is not part of a request.
pub(crate) fn once(runtime: &Runtime, scenario: &mut Scenario, requests: usize) -> ! {
    runtime.block_on(async {
        scenario.prepare().await;
        scenario.run(requests).await;
    });
    process::exit(0)
}
