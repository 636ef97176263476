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
use sqlx::MySqlPool;

use super::{
    LeaseStore, TransactionStore,
    lease_sql::LeaseSql,
    schema::{LEASES, TRANSACTIONS},
    servers,
    statement::filled,
    transaction_sql::TransactionSql,
};
use crate::{
    conformance::Harness,
    store::{Store, TableName},
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
    let mut store = LeaseStore::new(pool().await?);
    store.migrate().await.unwrap();
    let table = TableName::of(LEASES.table);
    let fill = |template: &str| as_mysql_reads(&filled(template, &table));
    store.set_sql(LeaseSql::built(fill));
    Some(AsMySql(Arc::new(store)))
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

mod lease_store {
    crate::__conformance_clauses!(lease, [as_mysql] super::lease());
    crate::__conformance_clauses!(steps, [as_mysql] super::lease());
}

mod transaction_store {
    crate::__conformance_clauses!(transaction, [as_mysql] super::transaction());
}
