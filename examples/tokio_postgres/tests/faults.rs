use http::StatusCode;
use tower_idempotency::RejectionKind;

use super::{
    Database,
    case::{Case, INSERT, NOTHING},
    servers::{Fault, Proxy, Rule, Strikes},
    support::Runs,
    until,
};
use crate::{connections::Connections, store::TransactionStore, tx::Tx};

/// Of the statements with this text, the first is `BEGIN ISOLATION LEVEL READ COMMITTED`.
fn on_commit(fault: Fault) -> Rule {
    fault.on("COMMIT").after(1)
}

/// A case with one effect, whose connections go through a proxy, and the strikes of a fault in it.
async fn case(rule: Rule, runs: &Runs, status: StatusCode) -> Option<(Case, Strikes, Proxy)> {
    let database = Database::new().await?;
    let proxy = Proxy::start(&database.url);
    let connections = Connections::new(proxy.url().parse().expect("a URL"), 2);
    let store = TransactionStore::new(connections).await.expect("a table");
    let counted = runs.clone();
    let handler = async move |tx: Tx| {
        counted.add();
        tx.execute(INSERT, &[]).await.expect("an effect");
        status
    };
    let case = Case::over(store, database, handler).await;
    let strikes = proxy.inject(rule);
    Some((case, strikes, proxy))
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_was_one() {
    for fault in [Fault::CutAfter, Fault::SwallowReply] {
        let runs = Runs::default();
        let case = case(on_commit(fault), &runs, StatusCode::CREATED).await;
        let Some((case, strikes, _proxy)) = case else {
            return;
        };
        let answer = case.post().await;
        assert_eq!(answer.status(), StatusCode::CREATED, "{fault:?}");
        assert_eq!(strikes.count(), 1);
        assert_eq!(case.left().await, [1, 1, 0]);
        assert!(case.post().await.is_replay());
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn a_commit_that_never_arrives_is_none_and_the_retry_runs() {
    let before = Fault::CutBefore;
    for rule in [
        before.on("RELEASE"),
        before.on("INSERT INTO idempotency"),
        on_commit(before),
    ] {
        let runs = Runs::default();
        let case = case(rule, &runs, StatusCode::CREATED).await;
        let Some((case, strikes, _proxy)) = case else {
            return;
        };
        let answer = case.post().await;
        assert_eq!(answer.rejection(), Some(RejectionKind::NotCommitted));
        assert_eq!(strikes.count(), 1);
        assert_eq!(case.left().await, NOTHING);
        assert_eq!(case.post().await.status(), StatusCode::CREATED);
        assert_eq!(case.left().await, [1, 1, 0]);
        assert_eq!(runs.count(), 2);
    }
}

#[tokio::test]
async fn a_rollback_that_never_arrives_happens_all_the_same() {
    let (runs, status) = (Runs::default(), StatusCode::BAD_REQUEST);
    let case = case(Fault::CutBefore.on("ROLLBACK TO"), &runs, status).await;
    let Some((case, strikes, _proxy)) = case else {
        return;
    };
    assert_eq!(case.post().await.status(), status);
    assert_eq!(strikes.count(), 1);
    until("its end", async || case.left().await == NOTHING).await;
    assert_eq!(case.post().await.status(), status);
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn a_reservation_that_breaks_off_claims_nothing() {
    for statement in ["BEGIN", "pg_try_advisory_xact_lock", "clock_timestamp"] {
        for fault in [Fault::CutBefore, Fault::CutAfter] {
            let runs = Runs::default();
            let case = case(fault.on(statement), &runs, StatusCode::CREATED).await;
            let Some((case, strikes, _proxy)) = case else {
                return;
            };
            let answer = case.post().await;
            assert_eq!(answer.rejection(), Some(RejectionKind::StoreUnavailable));
            assert_eq!(strikes.count(), 1);
            until("its end", async || case.left().await == NOTHING).await;
            assert_eq!(case.post().await.status(), StatusCode::CREATED);
            assert_eq!(runs.count(), 1);
        }
    }
}
