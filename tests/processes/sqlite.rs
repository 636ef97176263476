//! Two processes over one SQLite file.

use std::{convert::Infallible, path::Path, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use sqlx::{
    Sqlite, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tempfile::TempDir;
use tower::{Layer, service_fn, util::BoxCloneSyncService};
use tower_idempotency::{
    IdempotencyContext, IdempotencyLayer, RejectionKind, RequestBody, ScopeBy, Tx,
    sqlite::{LeaseStore, TransactionStore},
    store::Takeover,
};

use crate::{
    other::{LIMIT, OtherProcess, orders, tell, told},
    support::{
        Body,
        handler::{Gate, response},
        post,
        probe::spawn_send,
        send,
    },
};

/// How long a killed process blocks its keys; also the time that a store call of the lease store has, three times over.
const LEASE: Duration = Duration::from_secs(5);
const DIRECTORY: &str = "IDEMPOTENCY_TEST_DIRECTORY";
const KIND: &str = "IDEMPOTENCY_TEST_STORE";
const LEASES: &str = "leases";
const TRANSACTIONS: &str = "transactions";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_between_effect_and_record_blocks_its_keys_and_then_takeover_decides() {
    let shop = Shop::new(LEASES).await;
    let mut child = shop.other_process().await;
    for key in ["held-refuse", "held-again"] {
        child.tell(&format!("send {key} {{}}")).await;
        assert_eq!(child.hears().await, format!("effect {key}"));
    }
    child.kill().await;

    let settled = async |takeover, key| {
        let service = shop
            .layer()
            .await
            .with_takeover(takeover)
            .layer(shop.handler(None).await);
        let mut refused = 0;
        loop {
            let answer = send(&service, post(key, "{}")).await;
            if answer.rejection() != Some(RejectionKind::InFlight) {
                return (refused, answer, send(&service, post(key, "{}")).await);
            }
            assert_eq!(answer.head.headers["retry-after"], "1");
            refused += 1;
            tokio::task::yield_now().await;
        }
    };
    let (refuse, again) = tokio::join!(
        settled(Takeover::Refuse, "held-refuse"),
        settled(Takeover::RunAgain, "held-again"),
    );

    let (refused, answer, later) = refuse;
    assert_ne!(refused, 0, "the lease was not waited for");
    for answer in [answer, later] {
        assert_eq!(answer.status(), StatusCode::CONFLICT);
        assert_eq!(answer.rejection(), Some(RejectionKind::OutcomeUnknown));
    }
    assert_eq!(shop.effects("held-refuse").await, 1);

    let (refused, answer, later) = again;
    assert_ne!(refused, 0, "the lease was not waited for");
    assert_eq!((answer.text(), answer.is_replay()), ("attempt 2", false));
    assert_eq!((later.text(), later.is_replay()), ("attempt 2", true));
    assert_eq!(shop.effects("held-again").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_requests_in_two_processes_at_once_have_one_effect() {
    for kind in [LEASES, TRANSACTIONS] {
        let shop = Shop::new(kind).await;
        let mut child = shop.other_process().await;
        let service = shop.layer().await.layer(shop.handler(None).await);
        for number in 0..20 {
            let key = format!("k{number}");
            let here = spawn_send(&service, post(&key, "{}"));
            child.tell(&format!("send {key} {{}}")).await;
            let here = told(&here.await.expect("an answer"));
            let there = child.hears_answer().await;

            let (run, replay) = ("201 None false attempt 1", "201 None true attempt 1");
            let other = if here == run { &there } else { &here };
            assert!(here == run || there == run, "{here}, {there}");
            let is_late = other.starts_with("409 Some(InFlight)") && kind == LEASES;
            assert!(other == replay || is_late, "{kind}: {other}");
            assert_eq!(shop.effects(&key).await, 1);
            assert_eq!(told(&send(&service, post(&key, "{}")).await), replay);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_store_refuses_a_duplicate_and_another_body_while_another_process_runs() {
    let shop = Shop::new(LEASES).await;
    let mut child = shop.other_process().await;
    let service = shop.layer().await.layer(shop.handler(None).await);
    child.tell("send held 1").await;
    assert_eq!(child.hears().await, "effect held");

    let during = send(&service, post("held", "1")).await;
    assert_eq!(during.rejection(), Some(RejectionKind::InFlight));
    let other = send(&service, post("held", "2")).await;
    assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    child.tell("go").await;
    assert_eq!(child.hears_answer().await, "201 None false attempt 1");

    assert!(send(&service, post("held", "1")).await.is_replay());
    let other = send(&service, post("held", "2")).await;
    assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    assert_eq!(shop.effects("held").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_store_waits_for_the_other_process_and_gets_503_only_if_its_lock_outlasts_the_wait()
 {
    let shop = Shop::new(TRANSACTIONS).await;
    let mut child = shop.other_process().await;
    let patient = shop.layer().await.with_store_call_limit(LIMIT);
    let patient = patient.layer(shop.handler(None).await);
    // By its own limit, and by the busy timeout of its connections.
    let brief = Duration::from_millis(100);
    let limited = shop.layer().await.with_store_call_limit(brief);
    let busy = shop.layer_over(shop.pool(brief).await).await;
    child.tell("send held 1").await;
    assert_eq!(child.hears().await, "effect held");

    let same = spawn_send(&patient, post("held", "1"));
    let other = spawn_send(&patient, post("held", "2"));
    for layer in [limited, busy] {
        let service = layer.layer(shop.handler(None).await);
        let refused = send(&service, post("held", "1")).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.rejection(), Some(RejectionKind::StoreUnavailable));
        assert!(refused.head.headers.contains_key("retry-after"));
    }
    assert!(!same.is_finished() && !other.is_finished());
    assert_eq!(shop.effects("held").await, 0, "not committed yet");
    child.tell("go").await;
    assert_eq!(child.hears_answer().await, "201 None false attempt 1");

    let same = same.await.expect("an answer");
    assert_eq!((same.text(), same.is_replay()), ("attempt 1", true));
    let other = other.await.expect("an answer");
    assert_eq!(other.rejection(), Some(RejectionKind::KeyReused));
    assert_eq!(shop.effects("held").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_of_a_killed_process_never_was_and_a_waiting_duplicate_runs() {
    let shop = Shop::new(TRANSACTIONS).await;
    let mut child = shop.other_process().await;
    let service = shop.layer().await.with_store_call_limit(LIMIT);
    let service = service.layer(shop.handler(None).await);
    child.tell("send held {}").await;
    assert_eq!(child.hears().await, "effect held");
    let waiting = spawn_send(&service, post("held", "{}"));
    child.kill().await;

    let waited = waiting.await.expect("an answer");
    assert_eq!((waited.text(), waited.is_replay()), ("attempt 1", false));
    assert_eq!(shop.effects("held").await, 1);
    assert!(send(&service, post("held", "{}")).await.is_replay());
}

/// Not a test: what the other process does. It ends with its input, which ends with its parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the tests start it as a process of its own"]
async fn the_other_process() {
    let (Ok(directory), Ok(kind)) = (std::env::var(DIRECTORY), std::env::var(KIND)) else {
        return;
    };
    let gate = Gate::closed();
    let shop = Shop::open(Path::new(&directory), &kind);
    let service = shop
        .layer()
        .await
        .layer(shop.handler(Some(gate.clone())).await);
    let mut orders = orders();
    tell("ready");
    while let Some(order) = orders.next_line().await.expect("an input") {
        match order.split(' ').collect::<Vec<_>>()[..] {
            ["go"] => gate.open(),
            ["send", key, body] => {
                let (service, request) = (service.clone(), post(key, body));
                tokio::spawn(async move {
                    tell(&format!("answer {}", told(&send(&service, request).await)));
                });
            }
            _ => panic!("what is {order}?"),
        }
    }
}

/// The database that both processes use, and where effects are: in it for a transaction store, in a file of their own for the other.
struct Shop {
    directory: std::path::PathBuf,
    kind: &'static str,
    _temporary: Option<TempDir>,
}

type Handler = BoxCloneSyncService<Request<RequestBody<Body>>, Response<Full<Bytes>>, Infallible>;

impl Shop {
    async fn new(kind: &'static str) -> Self {
        let temporary = tempfile::tempdir().expect("a directory");
        let mut shop = Self::open(temporary.path(), kind);
        shop._temporary = Some(temporary);
        sqlx::query("CREATE TABLE effects (key TEXT NOT NULL)")
            .execute(&shop.effects_pool().await)
            .await
            .expect("a table");
        shop
    }

    fn open(directory: &Path, kind: &str) -> Self {
        Self {
            directory: directory.to_owned(),
            kind: if kind == LEASES { LEASES } else { TRANSACTIONS },
            _temporary: None,
        }
    }

    async fn other_process(&self) -> OtherProcess {
        let environment = [
            (DIRECTORY, self.directory.as_os_str()),
            (KIND, self.kind.as_ref()),
        ];
        OtherProcess::start("sqlite::the_other_process", environment).await
    }

    async fn layer(&self) -> IdempotencyLayer {
        self.layer_over(self.pool(LIMIT).await).await
    }

    async fn layer_over(&self, pool: SqlitePool) -> IdempotencyLayer {
        let scope = ScopeBy::single_tenant();
        let layer = if self.kind == LEASES {
            let store = LeaseStore::new(pool);
            store.migrate().await.expect("a table");
            IdempotencyLayer::new(store, scope)
        } else {
            let store = TransactionStore::new(pool);
            store.migrate().await.expect("a table");
            IdempotencyLayer::new(store, scope)
        };
        layer.with_lease(LEASE)
    }

    /// Has its effect, waits if there is a gate and the key is a `held` one, and tells the attempt.
    async fn handler(&self, gate: Option<Gate>) -> Handler {
        let effects = self.effects_pool().await;
        BoxCloneSyncService::new(service_fn(move |request: Request<RequestBody<Body>>| {
            let (gate, effects) = (gate.clone(), effects.clone());
            async move {
                let context = request.extensions().get::<IdempotencyContext>();
                let context = context.expect("a keyed request").clone();
                let key = context.key().as_str().to_owned();
                let effect = sqlx::query("INSERT INTO effects VALUES (?)").bind(&key);
                let written = match Tx::<Sqlite>::take(request.extensions()) {
                    Ok(mut tx) => effect.execute(&mut *tx).await,
                    Err(_) => effect.execute(&effects).await,
                };
                written.expect("an effect");
                if let Some(gate) = gate.filter(|_| key.starts_with("held")) {
                    tell(&format!("effect {key}"));
                    gate.pass().await;
                }
                let text = format!("attempt {}", context.attempt());
                Ok(response(StatusCode::CREATED, text))
            }
        }))
    }

    /// How often a key had its effect, as a connection of the test's own sees it.
    async fn effects(&self, key: &str) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM effects WHERE key = ?")
            .bind(key)
            .fetch_one(&self.effects_pool().await)
            .await
            .expect("a count")
    }

    async fn effects_pool(&self) -> SqlitePool {
        let file = if self.kind == LEASES {
            "effects.db"
        } else {
            STORE
        };
        self.pool_of(file, LIMIT).await
    }

    async fn pool(&self, busy_timeout: Duration) -> SqlitePool {
        self.pool_of(STORE, busy_timeout).await
    }

    async fn pool_of(&self, file: &str, busy_timeout: Duration) -> SqlitePool {
        let options = SqliteConnectOptions::new()
            .filename(self.directory.join(file))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(busy_timeout);
        let pool = SqlitePoolOptions::new().max_connections(4);
        pool.connect_with(options).await.expect("a database")
    }
}

const STORE: &str = "store.db";
