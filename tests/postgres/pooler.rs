//! Without prepared statements, and through a pooler that can't have them.

use sqlx::{
    ConnectOptions, Connection, Row,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::task::JoinSet;
use tower_idempotency::{
    RecordKey,
    postgres::{LeaseStore, TransactionStore},
    store::{Nonce, Store, Takeover, Terms},
};

use super::database;
use crate::{
    postgres_support::*,
    servers::{self, PgBouncer},
};

/// On how the stores tell a pool that leads through a pooler.
#[tokio::test]
async fn a_statement_cache_that_is_off_shows_in_the_url_and_leaves_statements_with_names() {
    let cached = |options: PgConnectOptions| {
        let url = options.to_url_lossy();
        let mut pairs = url.query_pairs();
        let capacity = pairs.find(|(name, _)| name == "statement-cache-capacity");
        capacity.unwrap().1.into_owned()
    };
    let options = PgConnectOptions::new_without_pgpass();
    assert_eq!(cached(options.clone()), "100");
    assert_eq!(cached(options.statement_cache_capacity(0)), "0");

    let database = database!();
    let named = "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''";
    let options = database.options().statement_cache_capacity(0);
    let mut connection = options.connect().await.unwrap();
    for persistent in [false, true] {
        for _ in 0..3 {
            let query = sqlx::query("SELECT $1::bigint").bind(1_i64);
            let query = query.persistent(persistent);
            query.execute(&mut connection).await.unwrap();
        }
        let row = sqlx::raw_sql(named).fetch_one(&mut connection).await;
        let names: i64 = row.unwrap().get(0);
        assert_eq!(names, if persistent { 3 } else { 0 });
    }
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_store_without_statement_cache_leaves_no_statements_with_names() {
    let database = database!();
    let options = database.options().statement_cache_capacity(0);
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await
        .unwrap();
    let lease = LeaseStore::new(pool.clone());
    let transaction = TransactionStore::new(pool.clone());
    let stores: [&dyn Store; 2] = [&lease, &transaction];
    for store in stores {
        use_all(store, &fresh_key()).await;
    }
    let named = "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''";
    let row = sqlx::raw_sql(named).fetch_one(&pool).await.unwrap();
    assert_eq!(row.get::<i64, _>(0), 0);
}

/// Every call of a store.
async fn use_all(store: &dyn Store, key: &RecordKey) {
    let terms = Terms::new(Nonce::random(), INSTANT, RETENTION);
    let lapsing = terms
        .with_run_limit(LEASE)
        .with_takeover(Takeover::RunAgain);
    for ends in 0..4 {
        let claim = claim(store, key, &lapsing).await;
        store.renew(&claim, LEASE).await.unwrap();
        match ends {
            0 => store.release(&claim).await.unwrap(),
            1 => store.abandon(&claim, INSTANT).await.unwrap(),
            2 => store
                .complete(&claim, &response("done"), INSTANT)
                .await
                .unwrap(),
            _ => store
                .complete(&claim, &response("done"), RETENTION)
                .await
                .unwrap(),
        }
        if ends < 3 {
            until(|| async { store.inspect(key).await.unwrap().is_none() }).await;
        }
    }
    assert_replays(&reserve(store, key).await, "done");
    assert!(store.forget(key).await.unwrap());
    store.purge_expired(10).await.unwrap();
    store.ping().await.unwrap();
}

/// Named statements would meet others' of the same name, and unnamed ones be overwritten between two steps.
#[tokio::test]
async fn many_clients_share_two_connections_of_a_transaction_pooler() {
    const CLIENTS: i64 = 24;
    let Some(server) = servers::postgres() else {
        return;
    };
    let Some(bouncer) = PgBouncer::start(server, 2) else {
        return;
    };
    let database = Database::on(server).await;
    let options: sqlx::postgres::PgConnectOptions = bouncer.through(&database.0).parse().unwrap();
    let mut tasks = JoinSet::new();
    // Where the pooler keeps statements apart, every other client has them prepared.
    let may_cache = bouncer.renames_statements().await;
    for client in 0..CLIENTS {
        let cached = if may_cache && client % 2 == 0 { 100 } else { 0 };
        let pool = pool(options.clone().statement_cache_capacity(cached), 1).await;
        let leases = LeaseStore::new(pool.clone());
        let transactions = TransactionStore::new(pool.clone());
        tasks.spawn(async move {
            for round in 0..10 {
                use_both(&leases, &transactions, client * 100 + round + 1).await;
            }
        });
    }
    tasks.join_all().await;
    let outside = database.pool(1).await;
    assert_eq!(count(&outside, CHARGES).await, CLIENTS * 10);
    until(|| async { count(&outside, LOCKS).await == 0 }).await;
}

async fn use_both(leases: &LeaseStore, transactions: &TransactionStore, amount: i64) {
    let key = fresh_key();
    let leased = claim(leases, &key, &terms()).await;
    let ran = claim(transactions, &key, &terms()).await;
    let mut tx = take(&ran);
    let insert = sqlx::query("INSERT INTO charges (amount) VALUES ($1)").bind(amount);
    insert.persistent(false).execute(&mut *tx).await.unwrap();
    drop(tx);
    transactions
        .complete(&ran, &response("charged"), RETENTION)
        .await
        .unwrap();
    leases.renew(&leased, LEASE).await.unwrap();
    leases
        .complete(&leased, &response("leased"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(leases, &key).await, "leased");
    assert_replays(&reserve(transactions, &key).await, "charged");
    leases.purge_expired(10).await.unwrap();
    assert!(leases.forget(&key).await.unwrap());
}
