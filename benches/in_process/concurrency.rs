//! Several requests at once.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use http::{Method, StatusCode};
use tokio::runtime::Builder;
use tower::ServiceExt;

use crate::{
    median,
    scenarios::{Answers, fresh},
    service::{DAY, Runs, guarded, handler, json, request},
};

/// Equal requests on two workers: one runs, the others are told so or get its answer.
pub(crate) fn equal_requests_at_once() {
    const REQUESTS: usize = 100;
    let runs = Runs::default();
    let service = guarded(&runs, true, DAY);
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    let answers = runtime.block_on(async {
        let body = json(200);
        let send = |_| {
            tokio::spawn(
                service
                    .clone()
                    .oneshot(request(Method::POST, Some(0), &body)),
            )
        };
        let tasks: Vec<_> = (0..REQUESTS).map(send).collect();
        let mut answers = Vec::new();
        for task in tasks {
            let Ok(response) = task.await.expect("no panic");
            answers.push(response.status());
        }
        answers
    });
    let conflicts = answers
        .iter()
        .filter(|status| **status == StatusCode::CONFLICT);
    let created = answers
        .iter()
        .filter(|status| **status == StatusCode::CREATED);
    let (conflicts, created) = (conflicts.count(), created.count());
    assert_eq!((runs.count(), conflicts + created), (1, REQUESTS));
    println!(
        "\n{REQUESTS} equal requests at once: 1 run, {created} got its answer, {conflicts} got 409"
    );
}

/// First requests on one thread and on two that share the layer, each with an executor of its own. Records expire soon:
/// in a store that only grows, the threads would wait for each other in the kernel, for memory.
///
/// The bare row tells what the machine gives: on a busy one, two threads are no faster than one.
pub(crate) fn two_threads() {
    const MOMENT: Duration = Duration::from_millis(20);
    println!(
        "\n{:<24} {:>6}  {:>6}",
        "two threads against one", "ratio", "reach"
    );
    let runs = Runs::default();
    println!("{:<24} {:>6.2}", "bare", scaling(|| handler(&runs)));
    println!(
        "{:<24} {:>6.2}  {:>6.2}",
        "first, inline",
        scaling(|| guarded(&runs, false, MOMENT)),
        1.6
    );
}

/// How many times as many requests two threads answer in the same time: the median of rounds that take turns.
fn scaling<S: Answers + Clone + Send>(make: impl Fn() -> S) -> f64 {
    let ratio = |_| throughput(make(), 2) / throughput(make(), 1);
    median((0..15).map(ratio))
}

fn throughput<S: Answers + Clone + Send>(service: S, threads: usize) -> f64 {
    const REQUESTS: usize = 50_000;
    let barrier = Barrier::new(threads + 1);
    let body = json(200);
    let time = thread::scope(|scope| {
        let worker = || {
            let mut service = service.clone();
            let (barrier, body) = (&barrier, body.clone());
            scope.spawn(move || {
                let runtime = Builder::new_current_thread().enable_time().build();
                barrier.wait();
                runtime.expect("a runtime").block_on(async {
                    for _ in 0..REQUESTS {
                        service.answer(request(Method::POST, fresh(), &body)).await;
                    }
                });
            })
        };
        let workers: Vec<_> = (0..threads).map(|_| worker()).collect();
        barrier.wait();
        let start = Instant::now();
        for worker in workers {
            worker.join().expect("no panic");
        }
        start.elapsed()
    });
    (threads * REQUESTS) as f64 / time.as_secs_f64()
}
