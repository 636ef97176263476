//! One database with both of its stores, and what is measured on it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use sqlx::{MySql, MySqlPool, PgPool, Postgres, Sqlite, SqlitePool};
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, Tag, Tx,
    store::{Claim, Nonce, Reservation, Store, Terms},
};

/// What is measured. The plain ones are what the others are compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// `SELECT 1`.
    Ping,
    /// A plain `INSERT … DO NOTHING` of a row as wide as a record.
    Insert,
    /// A plain `SELECT` of such a row by its key.
    Select,
    /// `BEGIN; INSERT; COMMIT`: the business transaction alone.
    Business,
    /// A new key, on the lease store.
    Reserve,
    /// Saving the response of a lease.
    Complete,
    /// Reserve, the business transaction, complete.
    LeaseCycle,
    LeaseReplay,
    /// Reserve, the business statement in the claim's transaction, complete.
    Transaction,
    TransactionReplay,
}

impl Operation {
    pub(crate) const ALL: [Self; 10] = [
        Self::Ping,
        Self::Insert,
        Self::Select,
        Self::Business,
        Self::Reserve,
        Self::Complete,
        Self::LeaseCycle,
        Self::LeaseReplay,
        Self::Transaction,
        Self::TransactionReplay,
    ];
}

pub(crate) struct Backend {
    pool: Pool,
    lease: Arc<dyn Store>,
    transaction: Arc<dyn Store>,
    /// A key that is done in both stores, and in the plain table.
    known: RecordKey,
}

pub(crate) enum Pool {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// The same on whichever database it is: with its pool, and its type.
macro_rules! on_each {
    ($backend:expr, ($pool:ident, $database:ident) => $run:expr) => {
        match &$backend.pool {
            Pool::Postgres($pool) => {
                type $database = Postgres;
                $run
            }
            Pool::MySql($pool) => {
                type $database = MySql;
                $run
            }
            Pool::Sqlite($pool) => {
                type $database = Sqlite;
                $run
            }
        }
    };
}

impl Backend {
    pub(crate) async fn new(pool: Pool, lease: impl Store, transaction: impl Store) -> Self {
        let backend = Self {
            pool,
            lease: Arc::new(lease),
            transaction: Arc::new(transaction),
            known: random_key(),
        };
        backend.insert(&backend.known).await;
        for store in [&backend.lease, &backend.transaction] {
            complete(store, &acquire_key(store, &backend.known).await).await;
        }
        backend
    }

    /// The claim that an operation needs before its time counts.
    pub(crate) async fn prepare(&self, operation: Operation) -> Option<Claim> {
        match operation {
            Operation::Complete => Some(acquire(&self.lease).await),
            _ => None,
        }
    }

    pub(crate) async fn run(&self, operation: Operation, prepared: Option<Claim>) {
        match operation {
            Operation::Ping => on_each!(self, (pool, _Database) => {
                sqlx::query("SELECT 1").execute(pool).await.expect("an answer");
            }),
            Operation::Insert => self.insert(&random_key()).await,
            Operation::Select => self.select().await,
            Operation::Business => self.charge().await,
            Operation::Reserve => drop(acquire(&self.lease).await),
            Operation::Complete => {
                let claim = prepared.expect("a claim");
                complete(&self.lease, &claim).await;
            }
            Operation::LeaseCycle => {
                let claim = acquire(&self.lease).await;
                self.charge().await;
                complete(&self.lease, &claim).await;
            }
            Operation::LeaseReplay => replay(&self.lease, &self.known).await,
            Operation::Transaction => {
                let claim = acquire(&self.transaction).await;
                self.charge_within(&claim).await;
                complete(&self.transaction, &claim).await;
            }
            Operation::TransactionReplay => replay(&self.transaction, &self.known).await,
        }
    }

    /// What each operation is about, shown once before it is measured.
    pub(crate) async fn show_that_it_works(&self) {
        let before = self.charges().await;
        for operation in Operation::ALL {
            let prepared = self.prepare(operation).await;
            self.run(operation, prepared).await;
        }
        // Business alone, in a lease cycle, and in a transaction.
        assert_eq!(self.charges().await - before, 3);
    }

    async fn insert(&self, key: &RecordKey) {
        let sql = match self.pool {
            Pool::Postgres(_) => "INSERT INTO plain VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            Pool::MySql(_) => "INSERT IGNORE INTO plain VALUES (?, ?, ?)",
            Pool::Sqlite(_) => "INSERT INTO plain VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        };
        on_each!(self, (pool, _Database) => {
            let insert = sqlx::query(sql).bind(&key.as_bytes()[..]).bind(&ROW[..]).bind(1_i64);
            insert.execute(pool).await.expect("a row");
        });
    }

    async fn select(&self) {
        let sql = match self.pool {
            Pool::Postgres(_) => "SELECT response, expires FROM plain WHERE record_key = $1",
            Pool::MySql(_) | Pool::Sqlite(_) => {
                "SELECT response, expires FROM plain WHERE record_key = ?"
            }
        };
        let row: (Vec<u8>, i64) = on_each!(self, (pool, _Database) => {
            sqlx::query_as(sql).bind(&self.known.as_bytes()[..]).fetch_one(pool).await.expect("the row")
        });
        assert_eq!(row.0, ROW);
    }

    /// The business transaction alone.
    async fn charge(&self) {
        let (begin, charge) = self.charging();
        on_each!(self, (pool, _Database) => {
            let mut tx = pool.begin_with(begin).await.expect("a transaction");
            sqlx::query(charge).bind(1_i64).execute(&mut *tx).await.expect("a charge");
            tx.commit().await.expect("a commit");
        });
    }

    /// The same statement in a claim's transaction.
    async fn charge_within(&self, claim: &Claim) {
        let (_, charge) = self.charging();
        on_each!(self, (_pool, Database) => {
            let mut tx = Tx::<Database>::take(claim.attachments()).expect("a transaction");
            sqlx::query(charge).bind(1_i64).execute(&mut *tx).await.expect("a charge");
        });
    }

    fn charging(&self) -> (&'static str, &'static str) {
        match self.pool {
            Pool::Postgres(_) => ("BEGIN", "INSERT INTO charges (amount) VALUES ($1)"),
            Pool::MySql(_) => ("BEGIN", "INSERT INTO charges (amount) VALUES (?)"),
            Pool::Sqlite(_) => ("BEGIN IMMEDIATE", "INSERT INTO charges (amount) VALUES (?)"),
        }
    }

    async fn charges(&self) -> i64 {
        let sql = "SELECT count(*) FROM charges";
        on_each!(self, (pool, _Database) => {
            sqlx::query_scalar(sql).fetch_one(pool).await.expect("a number")
        })
    }
}

async fn acquire(store: &Arc<dyn Store>) -> Claim {
    acquire_key(store, &random_key()).await
}

async fn acquire_key(store: &Arc<dyn Store>, key: &RecordKey) -> Claim {
    match store.reserve(key, &fingerprint(), &terms()).await {
        Ok(Reservation::Acquired(claim)) => claim,
        other => panic!("not acquired: {other:?}"),
    }
}

async fn complete(store: &Arc<dyn Store>, claim: &Claim) {
    store
        .complete(claim, &response(), RETENTION)
        .await
        .expect("a completed key");
}

async fn replay(store: &Arc<dyn Store>, key: &RecordKey) {
    let answer = store.reserve(key, &fingerprint(), &terms()).await;
    assert!(
        matches!(answer, Ok(Reservation::Replay { response: saved, .. }) if saved == response())
    );
}

fn response() -> SavedResponse {
    SavedResponse::new(
        StatusCode::CREATED,
        HeaderMap::new(),
        Bytes::from_static(&ROW),
        None,
    )
}

fn fingerprint() -> Fingerprint {
    Fingerprint::new(Tag::from_u16(0x0101), [1; 32])
}

fn terms() -> Terms {
    Terms::new(Nonce::random(), LEASE, RETENTION)
}

fn random_key() -> RecordKey {
    let halves = [*Nonce::random().as_bytes(), *Nonce::random().as_bytes()];
    RecordKey::from_bytes(halves.concat().try_into().expect("32 bytes"))
}

/// The body of a response, and of a row of the plain table.
static ROW: [u8; 300] = [7; 300];
const LEASE: Duration = Duration::from_secs(60);
const RETENTION: Duration = Duration::from_secs(600);
