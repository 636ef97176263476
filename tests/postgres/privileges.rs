//! What the user of the database must be allowed to do.

use tower_idempotency::{
    StoreErrorKind,
    postgres::{LeaseStore, TransactionStore},
    store::{Reservation, Store},
};

use super::{
    database,
    schema::{TABLES, execute, message},
};
use crate::postgres_support::*;

/// A user of the application, who needs no more than this.
#[tokio::test]
async fn the_privileges_that_are_needed_are_few_and_those_that_lack_are_told() {
    let database = database!();
    let owner = database.pool(1).await;
    let role = format!("clerk_{}", uuid::Uuid::new_v4().simple());
    execute(&owner, &format!("CREATE ROLE {role} LOGIN")).await;
    let clerk = pool(database.options().username(&role), 1).await;
    let (lease, transaction) = (
        LeaseStore::new(clerk.clone()),
        TransactionStore::new(clerk.clone()),
    );
    let stores: [&dyn Store; 2] = [&lease, &transaction];
    for (granted, lacking) in [("", "SELECT, INSERT, UPDATE"), ("SELECT", "INSERT, UPDATE")] {
        for table in TABLES.iter().filter(|_| !granted.is_empty()) {
            execute(&owner, &format!("GRANT {granted} ON {table} TO {role}")).await;
        }
        for check in [lease.check().await, transaction.migrate().await] {
            let message = message(&check.unwrap_err());
            assert!(message.contains(lacking), "{message}");
        }
        let refused = lease.reserve(&fresh_key(), &fingerprint(1), &terms()).await;
        let message = message(&refused.unwrap_err());
        assert!(message.contains("privilege"), "{message}");
    }
    // The transaction store finds out at the end, and nothing happened.
    let claimed = claim(&transaction, &fresh_key(), &terms()).await;
    let refused = transaction
        .complete(&claimed, &response("done"), RETENTION)
        .await;
    assert_kind(refused, StoreErrorKind::RolledBack);

    for table in TABLES {
        execute(
            &owner,
            &format!("GRANT INSERT, UPDATE ON {table} TO {role}"),
        )
        .await;
    }
    lease.check().await.unwrap();
    transaction.check().await.unwrap();
    for store in stores {
        let claimed = claim(store, &fresh_key(), &terms()).await;
        store
            .complete(&claimed, &response("done"), RETENTION)
            .await
            .unwrap();
        assert!(matches!(
            reserve(store, claimed.key()).await,
            Reservation::Replay { .. }
        ));
        let refused = store.purge_expired(1).await.unwrap_err();
        assert!(message(&refused).contains("privilege"));
    }
    for table in TABLES {
        execute(&owner, &format!("GRANT DELETE ON {table} TO {role}")).await;
    }
    for store in stores {
        store.purge_expired(1).await.unwrap();
    }
    // To make tables takes a privilege on the schema.
    let made = LeaseStore::new(clerk).with_table("made".parse().unwrap());
    let refused = message(&made.migrate().await.unwrap_err());
    assert!(refused.contains("privilege"), "{refused}");
    execute(&owner, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// What a policy hides would look like a free key.
#[tokio::test]
async fn policies_that_may_hide_rows_are_told_at_start() {
    let database = database!();
    let owner = database.pool(1).await;
    let role = format!("tenant_{}", uuid::Uuid::new_v4().simple());
    execute(&owner, &format!("CREATE ROLE {role} LOGIN")).await;
    let tenant = pool(database.options().username(&role), 1).await;
    let (lease, transaction) = (
        LeaseStore::new(tenant.clone()),
        TransactionStore::new(tenant),
    );
    for table in TABLES {
        let enable = "ENABLE ROW LEVEL SECURITY";
        let sql = format!("GRANT ALL ON {table} TO {role}; ALTER TABLE {table} {enable}");
        execute(&owner, &sql).await;
    }
    let all = "FOR ALL USING (true)";
    // One after the other, which add up.
    for (policy, is_good) in [
        ("shown FOR SELECT USING (true)", false),
        ("others FOR ALL TO pg_monitor USING (true)", false),
        ("partial_rows FOR ALL USING (fence > 0)", false),
        (
            "unwritable FOR ALL USING (true) WITH CHECK (fence > 0)",
            false,
        ),
        (&format!("free {all}"), true),
        ("narrow AS RESTRICTIVE FOR DELETE USING (fence > 0)", false),
    ] {
        for table in TABLES {
            let (name, rest) = policy.split_once(' ').unwrap();
            execute(&owner, &format!("CREATE POLICY {name} ON {table} {rest}")).await;
        }
        for check in [lease.check().await, transaction.check().await] {
            match check {
                Ok(()) => assert!(is_good, "{policy}"),
                Err(error) => assert!(
                    !is_good && message(&error).contains(all),
                    "{policy}: {error:?}"
                ),
            }
        }
    }
    // They don't concern the owner, nor who may bypass them.
    LeaseStore::new(owner.clone()).check().await.unwrap();
    execute(&owner, &format!("ALTER ROLE {role} BYPASSRLS")).await;
    lease.check().await.unwrap();
    execute(&owner, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
