//! What the stores cost on a real database, as ratios to the same work by plain SQL on the same connection pool.
//!
//! `cargo bench --all-features --bench store`; `-- postgres` (or `mariadb`, `sqlite`) measures that one alone, and `-- fast` servers
//! that don't wait for the disk. Two shapes: one caller, whose operations take turns (lower quartiles of their times), and 32
//! callers at once, in slices that take turns (medians of their throughputs). Servers are private and on loopback.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a bench fails by panicking"
)]

mod backend;
mod measure;
mod opening;
#[path = "../../tests/servers/mod.rs"]
mod servers;

use std::{env, sync::Arc};

use backend::{Backend, Operation};
use tokio::runtime::Runtime;

/// Operations, what they are compared with, and the goals, where there is one: Postgres, MariaDB, SQLite.
const COMPARED: [(Operation, Operation, [&str; 3]); 9] = [
    (Operation::Insert, Operation::Ping, ["", "", ""]),
    (Operation::Select, Operation::Ping, ["", "", ""]),
    (Operation::Reserve, Operation::Insert, ["1.25", "", ""]),
    (Operation::Complete, Operation::Insert, ["", "", ""]),
    (Operation::LeaseReplay, Operation::Select, ["1.25", "", ""]),
    (Operation::Business, Operation::Ping, ["", "", ""]),
    (Operation::LeaseCycle, Operation::Business, ["", "", ""]),
    (
        Operation::Transaction,
        Operation::Business,
        ["1.50", "1.60", "1.38"],
    ),
    (
        Operation::TransactionReplay,
        Operation::Select,
        ["", "", ""],
    ),
];

fn main() {
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let fast = arguments.iter().any(|word| word == "fast");
    let chosen: Vec<_> = arguments.iter().filter(|word| *word != "fast").collect();
    let runtime = Runtime::new().expect("a runtime");
    for (column, name) in ["postgres", "mariadb", "sqlite"].into_iter().enumerate() {
        if !chosen.is_empty() && !chosen.iter().any(|word| *word == name) {
            continue;
        }
        let opened = runtime.block_on(async {
            match name {
                "postgres" => opening::postgres(fast).await,
                "mariadb" => opening::mariadb(fast).await,
                _ => opening::sqlite(fast).await,
            }
        });
        if let Some((backend, _place)) = opened {
            let backend = Arc::new(backend);
            let waits = if fast { "doesn't wait" } else { "waits" };
            println!("\n{name}, which {waits} for the disk");
            report(&runtime, &backend, column);
        }
    }
}

fn report(runtime: &Runtime, backend: &Arc<Backend>, column: usize) {
    runtime.block_on(backend.show_that_it_works());
    // On a task, as a server's calls are: the main thread would be woken by another one for each answer.
    let alone = runtime.spawn(measure::alone(Arc::clone(backend)));
    let alone = runtime.block_on(alone).expect("no panic");
    let many = runtime.block_on(measure::together(backend));
    println!(
        "{:<22} {:>9} {:>9}   {:<10} {:>7} {:>7}   {:>6}",
        "", "us, one", "per s, 32", "against", "one", "32", "reach"
    );
    println!(
        "{:<22} {:>9.0} {:>9.0}",
        "Ping",
        alone.of(Operation::Ping),
        many.of(Operation::Ping)
    );
    for (operation, base, reach) in COMPARED {
        // More time, or less throughput, is a higher ratio.
        println!(
            "{:<22} {:>9.0} {:>9.0}   {:<10} {:>7.2} {:>7.2}   {:>6}",
            format!("{operation:?}"),
            alone.of(operation),
            many.of(operation),
            format!("{base:?}"),
            alone.of(operation) / alone.of(base),
            many.ratio(base, operation),
            reach[column],
        );
    }
}
