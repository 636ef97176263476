//! The layer over the SQLite stores: long runs, outages, secrets, shared pools and purges. Effects are read through a second pool.
#![cfg(all(feature = "memory", feature = "sqlite"))]

mod sqlite_support;
mod support;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use sqlite_support::{CHARGES, File, count, shop, until};
use sqlx::{
    Connection, Sqlite, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use support::{
    Answer, Body, Runs,
    handler::{answering, layer, response},
    post,
    probe::{Probe, spawn_send},
    send,
};
use tokio::sync::Barrier;
use tower::{Layer, service_fn};
use tower_idempotency::{
    IdempotencyContext, OnStoreFailure, RejectionKind, RequestBody, Tx, Verdict,
    sqlite::{LeaseStore, TransactionStore},
    store::{Store, StoreKind, Takeover},
};

const BRIEF: Duration = Duration::from_millis(50);

async fn leases(pool: SqlitePool) -> LeaseStore {
    let store = LeaseStore::new(pool);
    store.migrate().await.expect("a table");
    store
}

async fn transactions(pool: SqlitePool) -> TransactionStore {
    let store = TransactionStore::new(pool);
    store.migrate().await.expect("a table");
    store
}

async fn either(kind: StoreKind, pool: SqlitePool) -> Arc<dyn Store> {
    if kind == StoreKind::Lease {
        Arc::new(leases(pool).await)
    } else {
        Arc::new(transactions(pool).await)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_longer_than_its_lease_keeps_its_key_from_other_stores_over_the_file() {
    const LEASE_END: &str = "SELECT lease_end FROM tower_idempotency_leases";
    const NOW: &str = "SELECT CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)";
    let (file, probe) = (File::wal(), Probe::new().shut());
    let [service, other] = [
        leases(file.pool(2).await).await,
        leases(file.pool(2).await).await,
    ]
    .map(|store| {
        layer(store)
            .with_lease(Duration::from_millis(1500))
            .with_takeover(Takeover::RunAgain)
            .layer(probe.service::<Body>())
    });
    let run = spawn_send(&service, post("k", "{}"));
    probe.started(1).await;
    // Should there ever be a second run, it isn't held.
    probe.let_through(2);
    let reader = file.pool(1).await;
    for _ in 0..2 {
        let end = count(&reader, LEASE_END).await;
        until(async || count(&reader, NOW).await > end).await;
        for service in [&service, &other] {
            let duplicate = send(service, post("k", "{}")).await;
            assert_eq!(duplicate.rejection(), Some(RejectionKind::InFlight));
        }
    }
    assert_eq!((probe.runs(), run.is_finished()), (1, false));
    probe.open();

    let first = run.await.expect("an answer");
    assert_eq!((first.text(), first.is_replay()), ("run 1", false));
    for service in [&service, &other] {
        let replay = send(service, post("k", "{}")).await;
        assert_eq!((replay.text(), replay.is_replay()), ("run 1", true));
    }
    assert_eq!((probe.runs(), probe.effects()), (1, 1));
}

#[tokio::test]
async fn a_secret_under_a_tombstone_is_in_none_of_the_database_s_files() {
    for kind in [StoreKind::Lease, StoreKind::Transaction] {
        let file = File::wal();
        let store = either(kind, file.pool(2).await).await;
        let service = layer(store).layer(answering(&Runs::default(), |_, _, body| {
            let secret = String::from_utf8_lossy(&body).replace("order", "secret");
            let mut response = response(StatusCode::CREATED, secret.clone());
            if secret == "secret-kept-back" {
                response.extensions_mut().insert(Verdict::Tombstone);
            }
            response
        }));
        for order in ["order-kept-back", "order-saved"] {
            let first = send(&service, post(order, order)).await;
            assert_eq!(first.text(), order.replace("order", "secret"));
        }
        let again = send(&service, post("order-kept-back", "order-kept-back")).await;
        assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));

        let holds = |text: &str| file.holds(text.as_bytes());
        assert!(
            holds("secret-saved"),
            "{kind:?}: saved, so it must be found"
        );
        assert!(!holds("secret-kept-back"), "{kind:?}");
        for key in ["order-kept-back", "order-saved"] {
            assert!(!holds(key), "{kind:?}: a key is stored as a digest");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_runs_as_the_pool_has_connections_may_all_use_the_pool() {
    for size in [1, 4] {
        let file = File::wal();
        let pool = shop(&file, size).await;
        let store = leases(pool.clone()).await;
        let (runs, all) = (Runs::default(), Arc::new(Barrier::new(size as usize)));
        let counted = runs.clone();
        let service = layer(store).layer(service_fn(move |_: Request<RequestBody<Body>>| {
            let (run, all, pool) = (counted.add(), Arc::clone(&all), pool.clone());
            async move {
                let mut connection = pool.acquire().await?;
                // Every connection of the pool is a handler's now.
                all.wait().await;
                sqlx::query("INSERT INTO charges (amount) VALUES (?)")
                    .bind(i64::try_from(run).expect("a small number"))
                    .execute(&mut *connection)
                    .await?;
                Ok::<_, sqlx::Error>(response(StatusCode::CREATED, "charged"))
            }
        }));
        let keys: Vec<_> = (0..size).map(|number| format!("k{number}")).collect();
        let sent: Vec<_> = keys
            .iter()
            .map(|key| spawn_send(&service, post(key, "{}")))
            .collect();
        for answer in sent {
            let answer = answer.await.expect("an answer");
            assert_eq!(answer.status(), StatusCode::CREATED);
        }
        for key in &keys {
            assert!(send(&service, post(key, "{}")).await.is_replay());
        }
        assert_eq!(runs.count(), size as usize);
        assert_eq!(count(&file.pool(1).await, CHARGES).await, i64::from(size));
    }
}

fn assert_unavailable(answer: &Answer) {
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.rejection(), Some(RejectionKind::StoreUnavailable));
    assert!(answer.head.headers.contains_key("retry-after"));
}

/// Stores whose database is out of reach, each in its own way: the pool is closed, or the file can't be opened.
async fn unreachable() -> Vec<Arc<dyn Store>> {
    let file = File::wal();
    let closed = file.pool(1).await;
    closed.close().await;
    let nowhere = SqliteConnectOptions::new().filename("/nowhere/at/all.db");
    let missing = SqlitePoolOptions::new().connect_lazy_with(nowhere);
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for pool in [closed, missing] {
        stores.push(Arc::new(LeaseStore::new(pool.clone())));
        stores.push(Arc::new(TransactionStore::new(pool)));
    }
    stores
}

#[tokio::test]
async fn without_its_database_a_store_lets_nothing_run_unless_that_was_chosen() {
    for store in unreachable().await {
        let probe = Probe::new();
        let service = layer(Arc::clone(&store)).layer(probe.service::<Body>());
        assert_unavailable(&send(&service, post("k", "{}")).await);
        assert_eq!(probe.runs(), 0, "{store:?}");
        if store.kind() == StoreKind::Transaction {
            continue;
        }
        let unprotected = layer(store).with_on_store_failure(OnStoreFailure::RunUnprotected);
        let service = unprotected.layer(probe.service::<Body>());
        for (run, text) in [(1, "run 1"), (2, "run 2")] {
            let answer = send(&service, post("k", "{}")).await;
            assert_eq!((answer.text(), answer.is_replay()), (text, false));
            assert!(!probe.context(run).is_protected());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_another_locks_is_an_outage_that_ends_with_the_lock() {
    for kind in [StoreKind::Lease, StoreKind::Transaction] {
        let (file, probe) = (File::new(SqliteJournalMode::Delete), Probe::new());
        let pool = file.pool_with(2, BRIEF).await;
        let store = either(kind, pool).await;
        let service = layer(store).layer(probe.service::<Body>());
        let mut other = file.pool(1).await.acquire().await.expect("a connection");
        let locked = other.begin_with("BEGIN EXCLUSIVE").await.expect("a lock");
        for _ in 0..2 {
            assert_unavailable(&send(&service, post("k", "{}")).await);
        }
        assert_eq!(probe.runs(), 0, "{kind:?}");
        locked.rollback().await.expect("an end of it");

        assert_eq!(send(&service, post("k", "{}")).await.text(), "run 1");
        assert!(send(&service, post("k", "{}")).await.is_replay());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_get_in_between_the_batches_of_a_large_purge() {
    const EXPIRED: i64 = 20_000;
    const ROWS: &str =
        "SELECT count(*) FROM tower_idempotency_transactions WHERE expires < 1000000";
    let file = File::wal();
    let pool = shop(&file, 4).await;
    let store = transactions(pool.clone()).await;
    sqlx::query(
        "INSERT INTO tower_idempotency_transactions (record_key, fingerprint_tag, fingerprint, nonce, fence, expires)
         WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
         SELECT randomblob(32), 257, randomblob(32), randomblob(16), n, n FROM numbers",
    )
    .bind(EXPIRED)
    .execute(&pool)
    .await
    .expect("expired rows");

    let left_over = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&left_over);
    let service =
        layer(store.clone()).layer(service_fn(move |request: Request<RequestBody<Body>>| {
            let seen = Arc::clone(&seen);
            async move { charge_and_count(&request, ROWS, &seen).await }
        }));
    let purging = store.clone();
    let purge = tokio::spawn(async move { purging.purge_expired(u32::MAX).await });
    let mut sent = 0;
    while !purge.is_finished() {
        sent += 1;
        let answer = send(&service, post(&format!("k{sent}"), "{}")).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
    }

    let purged = purge.await.expect("a purge").expect("a count");
    assert_eq!(i64::try_from(purged).expect("a count"), EXPIRED);
    let left_over = left_over.lock().expect("a list").clone();
    let between = left_over.iter().filter(|&&left| left > 0 && left < EXPIRED);
    assert_ne!(between.count(), 0, "{left_over:?}");
    let reader = file.pool(1).await;
    assert_eq!(count(&reader, CHARGES).await, sent);
    let records = "SELECT count(*) FROM tower_idempotency_transactions";
    assert_eq!(count(&reader, records).await, sent);
    for number in 1..=sent {
        let replay = send(&service, post(&format!("k{number}"), "{}")).await;
        assert!(replay.is_replay());
    }
}

async fn charge_and_count(
    request: &Request<RequestBody<Body>>,
    rows: &'static str,
    seen: &Mutex<Vec<i64>>,
) -> Result<Response<Body>, sqlx::Error> {
    let context = request.extensions().get::<IdempotencyContext>();
    let key = context.expect("a keyed request").key().as_str();
    let mut tx = Tx::<Sqlite>::take(request.extensions()).expect("a transaction");
    sqlx::query("INSERT INTO charges (amount) VALUES (?)")
        .bind(key[1..].parse::<i64>().expect("a number"))
        .execute(&mut *tx)
        .await?;
    let left: i64 = sqlx::query_scalar(rows).fetch_one(&mut *tx).await?;
    seen.lock().expect("a list").push(left);
    Ok(response(StatusCode::CREATED, "charged"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handlers_own_transaction_that_loses_gives_its_key_back() {
    let file = File::wal();
    let pool = shop(&file, 2).await;
    let (rival, runs) = (file.pool(1).await, Runs::default());
    let (counted, writer) = (runs.clone(), pool.clone());
    let handler = service_fn(move |_: Request<RequestBody<Body>>| {
        let (run, pool, rival) = (counted.add(), writer.clone(), rival.clone());
        async move {
            let charge = async {
                // It begins by reading, and in the first run another one writes before it does.
                let mut own = pool.begin().await?;
                sqlx::query(CHARGES).fetch_one(&mut *own).await?;
                if run == 1 {
                    let rivals = "INSERT INTO charges (amount) VALUES (99)";
                    sqlx::query(rivals).execute(&rival).await?;
                }
                let amount = if run == 2 { 99 } else { 7 };
                sqlx::query("INSERT INTO charges (amount) VALUES (?)")
                    .bind(amount)
                    .execute(&mut *own)
                    .await?;
                own.commit().await
            };
            let mut answer = response(StatusCode::CREATED, "charged");
            if let Err(error) = charge.await {
                *answer.status_mut() = StatusCode::CONFLICT;
                if let Some(verdict) = Verdict::for_error(&error) {
                    answer.extensions_mut().insert(verdict);
                }
            }
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let leases = File::wal();
    let service = layer(self::leases(leases.pool(2).await).await).layer(handler);

    let lost = send(&service, post("k", "{}")).await;
    assert_eq!(lost.rejection(), Some(RejectionKind::NotCommitted));
    // An amount that is there already is no conflict of transactions: the handler's own answer.
    let refused = send(&service, post("k", "{}")).await;
    assert_eq!(
        (refused.status(), refused.rejection()),
        (StatusCode::CONFLICT, None)
    );
    let charged = send(&service, post("k", "{}")).await;
    assert_eq!(charged.text(), "charged");
    assert!(send(&service, post("k", "{}")).await.is_replay());
    assert_eq!(
        (runs.count(), count(&file.pool(1).await, CHARGES).await),
        (3, 2)
    );
}
