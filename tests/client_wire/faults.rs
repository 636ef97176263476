//! A fault that is over after it struck once, on each client.

use std::time::Duration;

use http::StatusCode;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tower::ServiceExt;
use tower_idempotency::client::{GaveUp, RetryPolicy};

use super::{
    clients::{HASTY, KINDS, Kind, retry},
    http_proxy::Fault,
    shop::Shop,
    world::{ORDER, World},
};

/// What is charged, and how the answer came about.
#[derive(Clone)]
struct Case {
    fault: Fault,
    /// Whether the answer is that of the first attempt.
    replays: bool,
    /// How many charges a client makes that retries with a new key.
    naively: i64,
}

fn of(fault: Fault, replays: bool, naively: i64) -> Case {
    Case {
        fault,
        replays,
        naively,
    }
}

async fn strikes(case: Case, kind: Kind) {
    let Case {
        fault,
        replays,
        naively,
    } = case;
    let what = format!("{fault:?} on {kind:?}");
    let mut layer = retry();
    if matches!(fault, Fault::HoldAnswer) {
        layer = layer.with_attempt_timeout(HASTY);
    }

    let with_the_layer = async |shop| {
        let world = World::of(shop, [fault.clone()]).await;
        let reply = kind.with(&layer).oneshot(world.order()).await;
        let reply = reply.expect(&what);
        assert_eq!(reply.status, StatusCode::OK, "{what}");
        assert!(reply.text().contains(r#""id":"ch_1""#), "{what}");
        assert_eq!(reply.delivery.is_replay(), replays, "{what}");
        assert!(!reply.delivery.outcome_is_unknown(), "{what}");
        assert_eq!(world.shop.charges().await, 1, "{what}");

        let attempts = world.attempts();
        assert_eq!(attempts.len(), 2, "{what}");
        assert_eq!(reply.delivery.attempts(), 2, "{what}");
        assert_eq!(attempts[1].body_text(), ORDER, "{what}");
        assert_eq!(attempts[1].key(), reply.delivery.key().as_str(), "{what}");
    };
    let without_it = async {
        let world = World::new([fault.clone()]).await;
        kind.naively(|| world.order()).await;
        assert_eq!(world.shop.charges().await, naively, "{what}");
    };
    tokio::join!(
        with_the_layer(Shop::protected().await),
        with_the_layer(Shop::leased().await),
        without_it,
    );
}

async fn all_strike(cases: impl IntoIterator<Item = Case>) {
    let mut strikes = JoinSet::new();
    for case in cases {
        for kind in KINDS {
            strikes.spawn(self::strikes(case.clone(), kind));
        }
    }
    strikes.join_all().await;
}

#[tokio::test]
async fn a_request_that_is_lost_on_its_way_is_sent_again() {
    all_strike([
        of(Fault::LoseRequest, false, 1),
        of(Fault::CutRequest, false, 1),
    ])
    .await;
}

#[tokio::test]
async fn an_answer_that_is_lost_is_replayed_and_a_new_key_charges_again() {
    all_strike([
        of(Fault::LoseAnswer, true, 2),
        of(Fault::ResetAnswer, true, 2),
        of(Fault::CutAnswer, true, 2),
        of(Fault::HoldAnswer, true, 2),
    ])
    .await;
}

const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const SOON: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
const LATER: &str = "Sun, 06 Nov 1994 09:49:37 GMT";

fn busy(status: StatusCode, retry_after: &str) -> Fault {
    Fault::answer(status, &[("date", NOW), ("retry-after", retry_after)], "")
}

#[tokio::test]
async fn answers_that_ask_for_patience_are_followed_by_another_attempt() {
    use StatusCode as S;
    all_strike([
        of(Fault::in_flight(), false, 1),
        of(busy(S::TOO_MANY_REQUESTS, "1"), false, 1),
        of(busy(S::TOO_MANY_REQUESTS, SOON), false, 1),
        of(busy(S::SERVICE_UNAVAILABLE, "1"), false, 1),
        of(busy(S::SERVICE_UNAVAILABLE, SOON), false, 1),
    ])
    .await;
}

#[tokio::test]
async fn an_answer_that_asks_for_more_patience_than_there_is_ends_the_call() {
    for kind in KINDS {
        for status in [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ] {
            for retry_after in ["3600", LATER] {
                let world = World::new([busy(status, retry_after)]).await;
                let reply = kind.with(&retry()).oneshot(world.order()).await;
                let reply = reply.expect("an answer");
                assert_eq!(reply.status, status);
                assert_eq!(reply.delivery.gave_up(), Some(GaveUp::Deadline));
                assert_eq!(world.attempts().len(), 1);
            }
        }
    }
}

#[tokio::test]
async fn a_server_that_is_down_gets_the_charge_when_it_is_back() {
    for kind in KINDS {
        let world = World::new([]).await;
        world.proxy.refuse().await;
        // Far more attempts than it takes until the server is back.
        let layer = retry().with_attempts(10_000).with_retry_budget(10_000, 0.0);
        let (sent, mut seen) = watch::channel(0);
        let policy = RetryPolicy::by(move |end| {
            sent.send_modify(|count| *count += 1);
            end.by_default()
        });
        let call = tokio::spawn(kind.with(&layer.with_policy(policy)).oneshot(world.order()));
        let refused = timeout(Duration::from_secs(60), seen.wait_for(|count| *count > 0));
        drop(refused.await.expect("in time").expect("a client"));
        world.proxy.accept().await;
        let reply = call.await.expect("a task").expect("an answer");
        assert_eq!(reply.status, StatusCode::OK);
        assert!(reply.delivery.attempts() > 1);
        assert_eq!((world.shop.charges().await, world.attempts().len()), (1, 1));
    }
}

#[tokio::test]
async fn a_failure_of_the_handler_is_retried_where_it_was_rolled_back_and_else_left_open() {
    for kind in KINDS {
        let world = World::new([]).await;
        world.shop.fail(1);
        let reply = kind.with(&retry()).oneshot(world.order()).await;
        let reply = reply.expect("an answer");
        assert_eq!(
            (reply.status, reply.delivery.attempts()),
            (StatusCode::OK, 2)
        );
        assert_eq!(world.shop.charges().await, 1);

        let world = World::of(Shop::leased().await, []).await;
        world.shop.fail(1);
        let reply = kind.with(&retry()).oneshot(world.order()).await;
        let reply = reply.expect("an answer");
        assert_eq!(
            (reply.status, reply.delivery.attempts()),
            (StatusCode::CONFLICT, 2)
        );
        assert!(reply.text().contains("outcome_unknown"));
        assert!(reply.delivery.outcome_is_unknown());
        assert_eq!(world.shop.charges().await, 1);

        let world = World::of(Shop::leased().await, []).await;
        world.shop.fail(1);
        kind.naively(|| world.order()).await;
        assert_eq!(world.shop.charges().await, 2);
    }
}

#[tokio::test]
async fn a_refusal_behind_the_layer_is_no_answer_to_the_key() {
    use StatusCode as S;
    for kind in KINDS {
        for busy in [S::REQUEST_TIMEOUT, S::TOO_EARLY, S::TOO_MANY_REQUESTS] {
            let world = World::new([]).await;
            world.shop.refuse(busy);
            let reply = kind.with(&retry()).oneshot(world.order()).await;
            let reply = reply.expect("an answer");
            assert_eq!((reply.status, reply.delivery.attempts()), (S::OK, 2));
            assert!(!reply.delivery.is_replay());
            assert_eq!((world.shop.charges().await, world.attempts().len()), (1, 2));
        }
        for refused in [S::UNAUTHORIZED, S::FORBIDDEN, S::PAYLOAD_TOO_LARGE] {
            let world = World::new([]).await;
            world.shop.refuse(refused);
            let reply = kind.with(&retry()).oneshot(world.order()).await;
            let reply = reply.expect("an answer");
            assert_eq!((reply.status, reply.delivery.attempts()), (refused, 1));
            assert!(!reply.delivery.outcome_is_unknown());

            // With a token that is valid, say.
            let mut again = world.order();
            again.extensions_mut().insert(reply.delivery.key().clone());
            let reply = kind.with(&retry()).oneshot(again).await;
            let reply = reply.expect("an answer");
            assert_eq!((reply.status, reply.delivery.is_replay()), (S::OK, false));
            assert_eq!((world.shop.charges().await, world.attempts().len()), (1, 2));
        }
    }
}
