use http::StatusCode;
use tokio::task::JoinSet;

use super::{
    bank::{Bank, request},
    support::send,
};

#[tokio::test]
async fn a_repeated_transfer_is_made_once_and_its_answer_replayed() {
    let Some(bank) = Bank::open().await else {
        return;
    };
    let first = bank.transfer("k", "bob", 70).await;
    let again = bank.transfer("k", "bob", 70).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let transfer = r#"{"id":1,"from":"alice","to":"bob","amount":70}"#;
    assert_eq!(first.text(), transfer);
    assert!(again.is_replay());
    assert_eq!(again.text(), transfer);
    assert_eq!(bank.books().await, [30, 70, 1, 1]);
    assert_eq!(bank.runs().await, 1);

    let other = bank.transfer("k", "bob", 7).await;
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(bank.runs().await, 1);
}

#[tokio::test]
async fn many_transfers_with_one_key_at_once_are_one() {
    let Some(bank) = Bank::open().await else {
        return;
    };
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let app = bank.app.clone();
        clients.spawn(async move { send(&app, request("k", ["alice", "bob"], 1)).await });
    }
    for answer in clients.join_all().await {
        let created = answer.status() == StatusCode::CREATED;
        assert!(created || answer.status() == StatusCode::CONFLICT);
    }
    assert!(bank.transfer("k", "bob", 1).await.is_replay());
    assert_eq!(bank.books().await, [99, 1, 1, 1]);
    assert_eq!(bank.runs().await, 1);
}

#[tokio::test]
async fn a_refused_transfer_leaves_nothing_and_may_be_asked_for_again() {
    let Some(bank) = Bank::open().await else {
        return;
    };
    for (key, to, amount) in [
        ("a", "bob", 101),
        ("b", "carol", 1),
        ("c", "alice", 1),
        ("a", "bob", 101),
    ] {
        let refused = bank.transfer(key, to, amount).await;
        assert_eq!(refused.status(), StatusCode::CONFLICT);
        assert_eq!(refused.rejection(), None, "it is the handler's own answer");
        assert_eq!(bank.books().await, [100, 0, 0, 0]);
    }

    let deposit = "UPDATE accounts SET balance = 101 WHERE name = 'alice'";
    let deposited = bank.database.connect().await.execute(deposit, &[]).await;
    deposited.expect("a deposit");
    let granted = bank.transfer("a", "bob", 101).await;
    assert_eq!(granted.status(), StatusCode::CREATED);
    assert_eq!(bank.books().await, [0, 101, 1, 1]);
    assert_eq!(bank.runs().await, 3, "of key a");
}

#[tokio::test]
async fn opposite_transfers_at_once_dont_deadlock() {
    let Some(bank) = Bank::open().await else {
        return;
    };
    bank.transfer("k", "bob", 50).await;
    let mut clients = JoinSet::new();
    for number in 0..40 {
        let app = bank.app.clone();
        let order = match number % 2 {
            0 => ["alice", "bob"],
            _ => ["bob", "alice"],
        };
        let request = request(&number.to_string(), order, 1);
        clients.spawn(async move { send(&app, request).await });
    }
    for answer in clients.join_all().await {
        assert_eq!(answer.status(), StatusCode::CREATED);
    }
    assert_eq!(bank.books().await, [50, 50, 41, 41]);
}
