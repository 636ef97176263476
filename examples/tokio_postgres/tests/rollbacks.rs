use http::StatusCode;

use super::{
    case::{Case, INSERT, NOTHING, failed},
    support::Runs,
};
use crate::tx::Tx;

#[tokio::test]
async fn a_failed_statement_that_the_handler_ignores_is_no_success() {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |tx: Tx| {
        let run = counted.add();
        tx.execute(INSERT, &[]).await.expect("an effect");
        if run < 3 {
            let twice = tx.execute(INSERT, &[]).await;
            assert!(twice.is_err());
        }
        StatusCode::CREATED
    };
    let Some(case) = Case::new(handler).await else {
        return;
    };
    for _ in 0..2 {
        assert!(failed(&case.post().await));
        assert_eq!(case.left().await, NOTHING);
    }
    assert_eq!(case.post().await.status(), StatusCode::CREATED);
    assert_eq!(case.left().await, [1, 1, 0]);
    assert!(case.post().await.is_replay());
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn a_failed_statement_that_a_savepoint_undoes_is_none() {
    let handler = async |tx: Tx| {
        let statements = [
            (INSERT, true),
            ("SAVEPOINT once", true),
            (INSERT, false),
            ("ROLLBACK TO SAVEPOINT once", true),
        ];
        for (statement, works) in statements {
            assert_eq!(tx.execute(statement, &[]).await.is_ok(), works);
        }
        StatusCode::CREATED
    };
    let Some(case) = Case::new(handler).await else {
        return;
    };
    assert_eq!(case.post().await.status(), StatusCode::CREATED);
    assert_eq!(case.left().await, [1, 1, 0]);
}

#[tokio::test]
async fn what_a_handler_wrote_that_fails_or_panics_is_rolled_back() {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |tx: Tx| {
        tx.execute(INSERT, &[]).await.expect("an effect");
        let run = counted.add();
        assert_ne!(run, 2, "a panic, on purpose");
        if run == 3 {
            let twice = tx.execute(INSERT, &[]).await;
            assert!(twice.is_err());
        }
        StatusCode::SERVICE_UNAVAILABLE
    };
    let Some(case) = Case::new(handler).await else {
        return;
    };
    for _ in 0..3 {
        assert!(case.post().await.status().is_server_error());
        assert_eq!(case.left().await, NOTHING);
    }
    assert_eq!(runs.count(), 3);
}
