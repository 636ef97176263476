//! The stores with their statements as MySQL reads them, on MariaDB: without what only MariaDB knows, and with what it takes for a
//! comment. That MySQL itself takes them isn't proved by this.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::{MySqlPool, mysql::MySqlPoolOptions};

use super::{
    LeaseStore, TransactionStore,
    lease_sql::LeaseSql,
    schema::{LEASES, TRANSACTIONS},
    servers,
    statement::filled,
    transaction_sql::TransactionSql,
};
use crate::{
    Fingerprint, RecordKey, Tag,
    conformance::Harness,
    store::{Nonce, Note, RecordState, Reservation, Store, TableName, Terms},
};

pub(super) fn as_mysql_reads(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut read = parts.next().unwrap().to_owned();
    for part in parts {
        let (comment, rest) = part.split_once("*/").unwrap();
        match comment.strip_prefix("!80000 ") {
            Some(code) => read.push_str(code),
            None => assert!(comment.starts_with("M! "), "{comment}"),
        }
        read.push_str(rest);
    }
    read
}

#[test]
fn what_is_for_mariadb_goes_and_what_is_for_mysql_stays() {
    let text = "a /*M! b */ c /*!80000 d, */ e";
    assert_eq!(as_mysql_reads(text), "a  c d,  e");
}

struct AsMySql(Arc<dyn Store>);

#[async_trait]
impl Harness for AsMySql {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// On MySQL itself this is the same as without.
async fn pool() -> Option<MySqlPool> {
    let url = servers::mariadb()?.database().await;
    Some(MySqlPool::connect(&url).await.unwrap())
}

async fn lease() -> Option<AsMySql> {
    let store = new_lease_store(pool().await?).await;
    Some(AsMySql(Arc::new(store)))
}

async fn new_lease_store(pool: MySqlPool) -> LeaseStore {
    let mut store = LeaseStore::new(pool);
    store.migrate().await.unwrap();
    let table = TableName::of(LEASES.table);
    let fill = |template: &str| as_mysql_reads(&filled(template, &table));
    store.set_sql(LeaseSql::built(fill));
    store
}

async fn transaction() -> Option<AsMySql> {
    let mut store = TransactionStore::new(pool().await?);
    store.migrate().await.unwrap();
    let table = TableName::of(TRANSACTIONS.table);
    let fill = |template: &str| as_mysql_reads(&filled(template, &table));
    store.set_sql(TransactionSql::built(fill));
    Some(AsMySql(Arc::new(store)))
}

macro_rules! as_mysql {
    ($group:ident::$clause:ident, $store:expr) => {
        #[tokio::test]
        async fn $clause() {
            if let Some(server) = $store.await {
                crate::conformance::$group::$clause(&server).await;
            }
        }
    };
}

/// What no statement can tell, a `COMMIT` makes true.
#[tokio::test]
async fn what_is_settled_where_a_stranger_left_a_transaction_is_committed() {
    let Some(outside) = pool().await else {
        return;
    };
    let options = MySqlPoolOptions::new().max_connections(1);
    let url = outside.connect_options();
    let shared = options.connect_with((*url).clone()).await.unwrap();
    let (store, other) = (
        new_lease_store(shared.clone()).await,
        new_lease_store(outside).await,
    );
    for left in ["START TRANSACTION", "START TRANSACTION READ ONLY"] {
        let nonce = Nonce::random();
        let (key, terms) = (
            RecordKey::from_bytes([left.len() as u8; 32]),
            Terms::new(nonce, Duration::from_secs(30), Duration::from_secs(60)),
        );
        let fingerprint = Fingerprint::new(Tag::from_u16(1), [1; 32]);
        let reserved = other.reserve(&key, &fingerprint, &terms).await.unwrap();
        let Reservation::Acquired(claim) = reserved else {
            panic!("{reserved:?}");
        };
        let note = Note::new("step", "1");
        sqlx::raw_sql(left).execute(&shared).await.unwrap();
        let noted = store.steps().unwrap().note(&claim, &note).await;
        noted.unwrap();
        let notes = other.steps().unwrap().notes(&claim).await.unwrap();
        assert_eq!(notes, [note], "{left}");
        sqlx::raw_sql(left).execute(&shared).await.unwrap();
        store.abandon(&claim, terms.retention()).await.unwrap();
        let record = other.inspect(&key).await.unwrap().unwrap();
        assert!(matches!(record.state, RecordState::Unknown), "{left}");
    }
}

mod lease_store {
    crate::__conformance_clauses!(lease, [as_mysql] super::lease());
    crate::__conformance_clauses!(steps, [as_mysql] super::lease());
}

mod transaction_store {
    crate::__conformance_clauses!(transaction, [as_mysql] super::transaction());
}
