//! Keys: whose they are, and what they are good for when a call has failed.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt};
use tower_idempotency::{
    IdempotencyKey,
    client::{Delivery, ErrorKind, GaveUp, Resumed},
};

use super::{
    clients::{KINDS, Kind, Reply, hyper, retry},
    http_proxy::Fault,
    world::World,
};

#[tokio::test]
async fn a_call_that_failed_tells_its_key_and_a_later_one_with_it_gets_the_charge() {
    for kind in KINDS {
        let world = World::new([Fault::LoseAnswer, Fault::CutAnswer]).await;
        let client = kind.with(&retry().with_attempts(2));
        let failed = client.oneshot(world.order()).await;
        let failed = failed.expect_err("two lost answers");
        assert_eq!(failed.kind(), ErrorKind::Service);
        assert_eq!(
            (failed.attempts(), failed.gave_up()),
            (2, Some(GaveUp::Attempts))
        );
        assert!(failed.outcome_is_unknown());
        assert_eq!(world.shop.charges().await, 1);
        let key = failed.key().expect("its key");
        assert_eq!(world.attempts()[0].key(), key.as_str());

        let mut order = world.order();
        order.extensions_mut().insert(key.clone());
        order
            .extensions_mut()
            .insert(Resumed::after(Duration::from_secs(60)));
        // Another client, as after a restart.
        let reply = kind.with(&retry()).oneshot(order).await.expect("an answer");
        assert_eq!(reply.status, StatusCode::OK);
        assert!(reply.text().contains(r#""id":"ch_1""#));
        assert!(reply.delivery.is_replay() && !reply.delivery.outcome_is_unknown());
        assert_eq!(world.shop.charges().await, 1);
        assert_eq!(world.attempts().len(), 3);
    }
}

#[tokio::test]
async fn an_answer_too_large_to_be_collected_breaks_off_in_the_caller_s_hands_with_its_key() {
    let world = World::new([Fault::CutAnswer]).await;
    let client = retry().with_response_body_limit(4).layer(hyper(false));
    let answer = client.oneshot(world.order()).await.expect("a head");
    let (head, body) = answer.into_parts();
    assert_eq!(head.status, StatusCode::OK);
    assert!(body.collect().await.is_err());

    let delivery: &Delivery = head.extensions.get().expect("a call with a key");
    let mut order = world.order();
    order.extensions_mut().insert(delivery.key().clone());
    let reply = Kind::Hyper.with(&retry()).oneshot(order).await;
    assert!(reply.expect("an answer").delivery.is_replay());
    assert_eq!((world.shop.charges().await, world.attempts().len()), (1, 2));
}

#[tokio::test]
async fn a_caller_s_own_key_is_kept_over_all_attempts() {
    for kind in KINDS {
        let world = World::new([Fault::LoseAnswer]).await;
        let mut order = world.order();
        let key = HeaderValue::from_static("order-1");
        order.headers_mut().insert("idempotency-key", key);
        let reply = kind.with(&retry()).oneshot(order).await.expect("an answer");
        assert!(reply.delivery.is_replay());

        let mut order = world.order();
        let key = IdempotencyKey::new("order-1").expect("a key");
        order.extensions_mut().insert(key);
        let reply = kind.with(&retry()).oneshot(order).await.expect("an answer");
        assert!(reply.delivery.is_replay());

        assert_eq!(world.shop.charges().await, 1);
        let attempts = world.attempts();
        assert_eq!(attempts.len(), 3);
        assert_eq!(attempts[0].key(), "order-1");
    }
}

#[tokio::test]
async fn two_calls_never_share_a_key() {
    for kind in KINDS {
        let world = World::new([]).await;
        let client = kind.with(&retry());
        let (one, other) = tokio::join!(
            client.clone().oneshot(world.order()),
            client.clone().oneshot(world.order()),
        );
        let key = |reply: &Reply| reply.delivery.key().as_str().to_owned();
        assert_ne!(
            key(&one.expect("an answer")),
            key(&other.expect("an answer"))
        );
        assert_eq!(world.shop.charges().await, 2);
    }
}
