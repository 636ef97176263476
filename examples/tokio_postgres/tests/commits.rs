use http::StatusCode;
use tower_idempotency::RejectionKind;

use super::{
    case::{Case, INSERT, NOTHING},
    support::Runs,
};
use crate::tx::Tx;

#[tokio::test]
async fn a_commit_that_postgres_refuses_is_no_success() {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |tx: Tx| {
        let run = counted.add();
        let defer = tx.execute("SET CONSTRAINTS ALL DEFERRED", &[]).await;
        defer.expect("a constraint that is checked at the commit");
        for _ in run..=2 {
            tx.execute(INSERT, &[]).await.expect("an effect");
        }
        StatusCode::CREATED
    };
    let Some(case) = Case::new(handler).await else {
        return;
    };
    let refused = case.post().await;
    assert_eq!(refused.rejection(), Some(RejectionKind::NotCommitted));
    assert_eq!(case.left().await, NOTHING);
    assert_eq!(case.post().await.status(), StatusCode::CREATED);
    assert_eq!(case.left().await, [1, 1, 0]);
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn what_a_handler_wrote_is_rolled_back_if_the_response_cant_be_saved() {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |tx: Tx| {
        counted.add();
        let statements = [INSERT, "ALTER TABLE idempotency DROP COLUMN nonce"];
        for statement in statements {
            tx.execute(statement, &[]).await.expect("an effect");
        }
        StatusCode::CREATED
    };
    let Some(case) = Case::new(handler).await else {
        return;
    };
    for _ in 0..2 {
        let refused = case.post().await;
        assert_eq!(refused.rejection(), Some(RejectionKind::NotCommitted));
        assert_eq!(case.left().await, NOTHING);
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn a_transaction_that_loses_against_another_at_its_commit_runs_again() {
    let lose = "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN RAISE SQLSTATE '40P01'; END $$;
        CREATE CONSTRAINT TRIGGER lose AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION lose()";
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |tx: Tx| {
        if counted.add() == 1 {
            tx.batch_execute(lose).await.expect("a trigger");
        }
        tx.execute(INSERT, &[]).await.expect("an effect");
        StatusCode::CREATED
    };
    let Some(case) = Case::new(handler).await else {
        return;
    };
    assert_eq!(case.post().await.status(), StatusCode::CREATED);
    assert_eq!(case.left().await, [1, 1, 0]);
    assert_eq!(runs.count(), 2);
}
