//! Connections: how many a run needs.

use std::sync::Arc;

use http::{Request, StatusCode};
use tokio::sync::Barrier;
use tower::{Layer, service_fn, util::BoxCloneSyncService};
use tower_idempotency::RequestBody;

use crate::{
    app::{Handler, created, handler, spawn},
    backends::{self, Backend, SIZE},
    support::{Body, Runs, post, send},
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
