//! Connections: how many a run needs.

use std::{sync::Arc, time::Duration};

use http::{Request, StatusCode};
use tokio::sync::Barrier;
use tower::{Layer, service_fn, util::BoxCloneSyncService};
use tower_idempotency::{
    IdempotencyKey, OnInFlight, RecordKey, RequestBody, Scope,
    store::{RecordState, Store},
};

use crate::{
    app::{Gate, Handler, created, handler, spawn},
    backends::{self, Backend, SIZE},
    support::{
        Body, Runs,
        faulty::{Call, FaultyStore},
        post, send,
    },
};

/// A run on a lease store holds none: as many handlers as there are connections have one each, all at once.
pub async fn handlers_on_a_lease_store_may_have_the_whole_pool(backend: Backend) {
    if backend.is_transaction() {
        return;
    }
    let (runs, all) = (Runs::default(), Arc::new(Barrier::new(SIZE as usize)));
    let (counted, pool) = (runs.clone(), backend.pool.clone());
    let handler: Handler =
        BoxCloneSyncService::new(service_fn(move |_: Request<RequestBody<Body>>| {
            let (run, pool, all) = (counted.add(), pool.clone(), Arc::clone(&all));
            async move {
                let held = pool.connection().await;
                all.wait().await;
                drop(held);
                Ok(created(run).await)
            }
        }));
    let service = backend.layer().layer(handler);
    for round in 1..=3 {
        let key = |number| format!("{round}-{number}");
        let asked: Vec<_> = (0..SIZE)
            .map(|number| spawn(&service, post(&key(number), "{}")))
            .collect();
        for answer in asked {
            assert_eq!(
                answer.await.expect("an answer").status(),
                StatusCode::CREATED
            );
        }
        for number in 0..SIZE {
            assert!(send(&service, post(&key(number), "{}")).await.is_replay());
        }
        assert_eq!(runs.count(), round * SIZE as usize);
    }
}

/// A run on a transaction store has one, and takes no other; those that have none wait for their turn.
async fn one_connection_is_enough_for_transactions(backend: Backend) {
    let runs = Runs::default();
    let service = backend.layer().layer(handler(&runs, None, created));
    let asked: Vec<_> = (0..SIZE)
        .map(|number| spawn(&service, post(&number.to_string(), "{}")))
        .collect();
    for answer in asked {
        assert_eq!(
            answer.await.expect("an answer").status(),
            StatusCode::CREATED
        );
    }
    for number in 0..SIZE {
        let again = send(&service, post(&number.to_string(), "{}")).await;
        assert!(again.is_replay());
    }
    let effects = backend.effects(&runs).await;
    assert_eq!((runs.count(), effects), (SIZE as usize, SIZE as usize));
}

/// The run that it waits for has the only connection.
async fn a_waiter_needs_none(backend: Backend) {
    let (runs, gate) = (Runs::default(), Arc::<Gate>::default());
    let store = FaultyStore::new(Arc::clone(&backend.store));
    let layer = backend
        .layer_over(store.clone())
        .with_on_in_flight(OnInFlight::Wait(Duration::from_secs(60)));
    let service = layer.layer(handler(&runs, Some(Arc::clone(&gate)), created));
    let first = spawn(&service, post("k", "{}"));
    gate.started.notified().await;
    let waiter = spawn(&service, post("k", "{}"));
    store.reached(Call::Inspect, 4).await;
    let key = IdempotencyKey::new("k").expect("a key");
    let key = RecordKey::derive("", &Scope::single_tenant(), &key);
    let record = store.inspect(&key).await.expect("the store answers");
    let record = record.expect("a record");
    assert!(
        matches!(record.state, RecordState::InFlight { lease_left, .. } if !lease_left.is_zero())
    );
    assert_eq!(record.attempt, 1);

    gate.open.notify_one();

    assert_eq!(first.await.expect("an answer").text(), "run 1");
    assert!(waiter.await.expect("an answer").is_replay());
    assert_eq!((runs.count(), backend.effects(&runs).await), (1, 1));
}

macro_rules! of_one_connection {
    ($($(#[$where:meta])* $backend:ident)*) => {
        mod of_one_connection {
            $(
                $(#[$where])*
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $backend() {
                    if let Some(backend) = super::backends::$backend(1).await {
                        super::one_connection_is_enough_for_transactions(backend).await;
                    }
                    if let Some(backend) = super::backends::$backend(1).await {
                        super::a_waiter_needs_none(backend).await;
                    }
                }
            )*
        }
    };
}

of_one_connection! {
    sqlite_transaction_of
    #[cfg(all(unix, feature = "postgres"))]
    postgres_transaction_of
    #[cfg(all(unix, feature = "mysql"))]
    mysql_transaction_of
}
