//! A listing reads the whole table, and is in nobody's way.

use sqlx::Connection;
use tower_idempotency::{
    postgres::{LeaseStore, TransactionStore},
    store::ListRecords,
};

use crate::{database, postgres_support::*};

#[tokio::test]
async fn a_listing_is_in_conflict_with_no_serializable_transaction() {
    let database = database!();
    let isolated = ("default_transaction_isolation", "serializable");
    let pool = database.pool_with(2, isolated).await;
    let outside = database.pool(1).await;
    // What a serializable transaction has read is remembered for as long as another one of its time is open.
    let mut connection = pool.acquire().await.unwrap();
    let mut open = connection.begin().await.unwrap();
    sqlx::query("INSERT INTO charges (amount) VALUES (1)")
        .execute(&mut *open)
        .await
        .unwrap();

    let stores: [&dyn ListRecords; 2] = [
        &LeaseStore::new(pool.clone()),
        &TransactionStore::new(pool.clone()),
    ];
    for store in stores {
        store.list_unsettled(LEASE, 10, None).await.unwrap();
        store.count_records().await.unwrap();
    }
    let remembered = "SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
        WHERE mode = 'SIReadLock' AND relname LIKE 'tower_idempotency%'";
    assert_eq!(count(&outside, remembered).await, 0);
    open.commit().await.unwrap();
    assert_eq!(count(&outside, CHARGES).await, 1);
}
