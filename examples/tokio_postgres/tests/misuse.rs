use std::sync::{Arc, Mutex};

use axum::extract::{FromRequestParts, Request};
use http::StatusCode;
use tower_idempotency::RejectionKind;

use super::{
    case::{Case, INSERT, NOTHING, failed},
    support::Runs,
    until,
};
use crate::tx::Tx;

#[tokio::test]
async fn a_transaction_that_the_handler_keeps_is_rolled_back() {
    let kept: Arc<Mutex<Option<Tx>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |tx: Tx| {
        tx.execute(INSERT, &[]).await.expect("an effect");
        if counted.add() == 1 {
            keep.lock().expect("no panic with the lock").replace(tx);
        }
        StatusCode::CREATED
    };
    let Some(case) = Case::new(handler).await else {
        return;
    };
    assert!(failed(&case.post().await));
    let meanwhile = case.post().await;
    assert_eq!(meanwhile.rejection(), Some(RejectionKind::InFlight));
    assert_eq!(case.left().await, [0, 0, 1]);

    drop(kept.lock().expect("no panic with the lock").take());
    until("its rollback", async || case.left().await == NOTHING).await;
    assert_eq!(case.post().await.status(), StatusCode::CREATED);
    assert_eq!(case.left().await, [1, 1, 0]);
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn a_transaction_is_taken_once() {
    let handler = async |request: Request| {
        let (mut parts, _) = request.into_parts();
        let first = Tx::from_request_parts(&mut parts, &()).await?;
        first.execute(INSERT, &[]).await.expect("an effect");
        let meanwhile = Tx::from_request_parts(&mut parts, &()).await;
        assert!(meanwhile.is_err());
        drop(first);
        let again = Tx::from_request_parts(&mut parts, &()).await;
        again.map(|_| StatusCode::CREATED)
    };
    let Some(case) = Case::new(handler).await else {
        return;
    };
    let answer = case.post().await;
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(answer.text().contains("taken before"), "{}", answer.text());
    assert_eq!(case.left().await, NOTHING);
}

#[tokio::test]
async fn the_outcome_of_a_transaction_that_the_handler_ended_is_unknown() {
    for (end, status) in [
        ("COMMIT", StatusCode::CREATED),
        ("COMMIT", StatusCode::BAD_REQUEST),
        ("COMMIT; BEGIN", StatusCode::CREATED),
        ("COMMIT; BEGIN", StatusCode::BAD_REQUEST),
        ("ROLLBACK", StatusCode::CREATED),
    ] {
        let runs = Runs::default();
        let counted = runs.clone();
        let handler = async move |tx: Tx| {
            counted.add();
            tx.execute(INSERT, &[]).await.expect("an effect");
            tx.batch_execute(end).await.expect("an end");
            status
        };
        let Some(case) = Case::new(handler).await else {
            return;
        };
        assert!(failed(&case.post().await), "{end}, {status}");
        let committed = i64::from(end.starts_with("COMMIT"));
        assert_eq!(case.left().await, [committed, 1, 0]);
        let retry = case.post().await;
        assert_eq!(retry.rejection(), Some(RejectionKind::OutcomeUnknown));
        assert_eq!(runs.count(), 1);
    }
}
