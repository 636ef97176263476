//! An app that is frozen in the middle of a charge.

use http::StatusCode;
use rustix::process::Signal;
use tokio::time::{Duration, Instant, interval};

use crate::{
    payments_app::{App, Database},
    server::{Answer, Caller, LIMIT, fresh_key, order},
};

/// Longer than the slow charge takes. The database waits no longer for an app that says nothing.
const RUN_LIMIT: &str = "5";

#[cfg(feature = "postgres")]
#[tokio::test]
async fn on_postgres_a_frozen_app_does_not_hold_its_key_for_ever() {
    if let Some(database) = Database::postgres().await {
        a_frozen_app_does_not_hold_its_key_for_ever(&database).await;
    }
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn on_mariadb_a_frozen_app_does_not_hold_its_key_for_ever() {
    if let Some(database) = Database::mariadb().await {
        a_frozen_app_does_not_hold_its_key_for_ever(&database).await;
    }
}

/// It may still charge: Redis knows nothing of the database. But what it answers is not saved.
#[cfg(all(feature = "postgres", feature = "redis"))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_a_frozen_app_is_overtaken_and_its_caller_gets_what_the_record_says() {
    let Some(redis) = tokio::task::block_in_place(crate::servers::redis) else {
        return;
    };
    let Some(database) = Database::postgres().await else {
        return;
    };
    let environment = [
        ("STORE_URL", redis.url()),
        ("TAKEOVER", "run-again"),
        ("LEASE", crate::redis::LEASE_TEXT),
    ];
    let frozen = App::start_with(&database, &environment).await;
    let other = App::start_with(&database, &environment).await;
    let key = fresh_key();

    let charge = frozen.client().start_slow(&key).await;
    frozen.signal(Signal::STOP);
    assert_eq!(database.charges().await, [], "it was frozen too late");
    let (retry, refusals) = until_answered(&other.client(), &key).await;
    assert_eq!(retry.status, StatusCode::CREATED, "{retry:?}");
    assert!(!retry.is_replay());
    assert_ne!(refusals, 0, "the key was not held");
    assert_eq!(database.charges_under(&key).await, 1);

    frozen.signal(Signal::CONT);
    let late = charge.await.expect("an answer");
    assert!(late.is_replay(), "{late:?}");
    assert_eq!(late.lasting(), retry.lasting());
    for app in [&frozen, &other] {
        let again = app.client().charge(&key, &order("tok_slow")).await;
        assert!(again.is_replay());
        assert_eq!(again.lasting(), retry.lasting());
    }
    assert!((1..=2).contains(&database.charges_under(&key).await));
}

async fn a_frozen_app_does_not_hold_its_key_for_ever(database: &Database) {
    let environment = [("RUN_LIMIT", RUN_LIMIT)];
    let frozen = App::start_with(database, &environment).await;
    let other = App::start_with(database, &environment).await;
    let key = fresh_key();

    let charge = frozen.client().start_slow(&key).await;
    frozen.signal(Signal::STOP);
    assert_eq!(database.charges().await, [], "it was frozen too late");
    let (retry, refusals) = until_answered(&other.client(), &key).await;
    assert_eq!(retry.status, StatusCode::CREATED, "{retry:?}");
    assert!(!retry.is_replay());
    assert_ne!(refusals, 0, "the key was not held");

    frozen.signal(Signal::CONT);
    let late = charge.await.expect("an answer");
    assert_eq!(database.charges_under(&key).await, 1);
    assert!(
        late.is_replay() || late.status.is_server_error(),
        "{late:?}"
    );
    for app in [&frozen, &other] {
        let again = app.client().charge(&key, &order("tok_slow")).await;
        assert!(again.is_replay());
        assert_eq!(again.lasting(), retry.lasting());
    }
    assert_eq!(database.charges_under(&key).await, 1);
}

/// The first answer that isn't 409, and how many of these came before.
async fn until_answered(client: &Caller, key: &str) -> (Answer, u32) {
    let start = Instant::now();
    let mut pause = interval(Duration::from_millis(50));
    let mut refusals = 0;
    loop {
        assert!(start.elapsed() < LIMIT, "the key is held for ever");
        pause.tick().await;
        let answer = client.charge(key, &order("tok_slow")).await;
        if answer.status != StatusCode::CONFLICT {
            return (answer, refusals);
        }
        assert_eq!(answer.code(), "in_flight");
        refusals += 1;
    }
}
