//! Times of one caller, and throughputs of many.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    backend::{Backend, Operation},
    opening::CONNECTIONS,
};

/// How often one caller does each operation.
const TURNS: usize = 400;
/// How often before it is measured. The pool's connections take turns, and each prepares a statement first, and then plans it anew
/// a few times.
const WARM_UP: usize = 8 * CONNECTIONS as usize;
/// How many callers there are at once, how often they measure each operation, and for how long.
const CALLERS: usize = 32;
const SLICES: usize = 11;
const SLICE: Duration = Duration::from_millis(300);

/// One number for each round of each operation.
pub(crate) struct Samples([Vec<f64>; Operation::ALL.len()], usize);

impl Samples {
    fn new(share: usize) -> Self {
        Self(Default::default(), share)
    }

    fn push(&mut self, operation: Operation, sample: f64) {
        self.0[operation as usize].push(sample);
    }

    /// The lower quartile of times, the median of throughputs.
    pub(crate) fn of(&self, operation: Operation) -> f64 {
        self.quantile(self.0[operation as usize].clone())
    }

    /// The same of the rounds' ratios.
    pub(crate) fn ratio(&self, over: Operation, under: Operation) -> f64 {
        let rounds = self.0[over as usize].iter().zip(&self.0[under as usize]);
        self.quantile(rounds.map(|(over, under)| over / under).collect())
    }

    fn quantile(&self, mut samples: Vec<f64>) -> f64 {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / self.1]
    }
}

/// Microseconds of each operation, by one caller that goes round all of them.
pub(crate) async fn alone(backend: Arc<Backend>) -> Samples {
    let mut samples = Samples::new(4);
    for turn in 0..WARM_UP + TURNS {
        for operation in Operation::ALL {
            let prepared = backend.prepare(operation).await;
            let start = Instant::now();
            backend.run(operation, prepared).await;
            if turn >= WARM_UP {
                samples.push(operation, start.elapsed().as_nanos() as f64 / 1e3);
            }
        }
    }
    samples
}

/// Operations per second of many callers.
pub(crate) async fn together(backend: &Arc<Backend>) -> Samples {
    let mut samples = Samples::new(2);
    for _ in 0..SLICES {
        for operation in Operation::ALL {
            let mut callers = JoinSet::new();
            for _ in 0..CALLERS {
                callers.spawn(caller(Arc::clone(backend), operation));
            }
            let rates = callers.join_all().await;
            samples.push(operation, rates.into_iter().sum());
        }
    }
    samples
}

/// What one of them gets done per second of its operations' own time; what prepares an operation doesn't count.
async fn caller(backend: Arc<Backend>, operation: Operation) -> f64 {
    let (mut done, mut spent) = (0_usize, Duration::ZERO);
    while spent < SLICE {
        let prepared = backend.prepare(operation).await;
        let start = Instant::now();
        backend.run(operation, prepared).await;
        spent += start.elapsed();
        done += 1;
    }
    done as f64 / spent.as_secs_f64()
}
