//! What the layer tells of the calls.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tower_idempotency::{IdempotencyLayer, Outcome, RecordKey};

use crate::is_unary;

/// What became of the calls, in order.
#[derive(Clone)]
pub struct Log {
    outcomes: watch::Sender<Vec<Outcome>>,
    keys: Arc<Mutex<Vec<RecordKey>>>,
}

impl Log {
    pub fn of(layer: IdempotencyLayer) -> (Self, IdempotencyLayer) {
        let log = Self {
            outcomes: watch::Sender::default(),
            keys: Arc::default(),
        };
        let kept = log.clone();
        let layer = layer
            .with_grpc_unary(is_unary)
            .with_observer(move |observation| {
                let key = *observation.record_key().expect("a key");
                kept.keys.lock().expect("a lock").push(key);
                let outcome = observation.outcome();
                kept.outcomes.send_modify(|all| all.push(outcome));
            });
        (log, layer)
    }

    pub fn outcomes(&self) -> Vec<Outcome> {
        self.outcomes.borrow().clone()
    }

    /// Waits until one of the calls came to this.
    pub async fn saw(&self, outcome: Outcome) {
        let mut outcomes = self.outcomes.subscribe();
        let seen = outcomes.wait_for(|all| all.contains(&outcome)).await;
        drop(seen.expect("the log lives"));
    }

    pub fn assert_one_key(&self) {
        let keys = self.keys.lock().expect("a lock");
        assert!(keys.windows(2).all(|pair| pair[0] == pair[1]), "{keys:?}");
    }
}
