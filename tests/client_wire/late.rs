//! Attempts that overlap.

use http::StatusCode;
use tower::ServiceExt;
use tower_idempotency::{Outcome, RejectionKind};

use super::{
    clients::{HASTY, KINDS, retry},
    http_proxy::Fault,
    world::World,
};

#[tokio::test]
async fn a_retry_that_meets_the_first_attempt_in_flight_gets_its_charge() {
    let [hyper, reqwest] = KINDS.map(async |kind| {
        let world = World::new([]).await;
        world.shop.close();
        let layer = retry().with_attempt_timeout(HASTY / 4).with_attempts(10);
        let reply = kind.with(&layer).oneshot(world.order());
        let retried = async {
            let in_flight = Outcome::Refused(RejectionKind::InFlight);
            world.shop.saw(in_flight).await;
            world.shop.open();
        };
        let (reply, ()) = tokio::join!(reply, retried);
        let reply = reply.expect("an answer");
        assert_eq!(reply.status, StatusCode::OK);
        assert!(reply.delivery.is_replay());
        assert_eq!((world.shop.runs(), world.shop.charges().await), (1, 1));
        assert!(world.attempts().len() >= 3);
    });
    tokio::join!(hyper, reqwest);
}

#[tokio::test]
async fn with_a_new_key_a_retry_doesn_t_know_of_the_first_attempt_in_flight() {
    let [hyper, reqwest] = KINDS.map(async |kind| {
        let world = World::new([]).await;
        world.shop.close();
        let retried = async {
            world.proxy.received(2).await;
            world.shop.open();
        };
        tokio::join!(kind.naively(|| world.order()), retried);
        world.shop.charged(2).await;
    });
    tokio::join!(hyper, reqwest);
}

#[tokio::test]
async fn a_request_that_arrives_after_its_retry_changes_nothing() {
    let [hyper, reqwest] = KINDS.map(async |kind| {
        let world = World::new([Fault::HoldRequest]).await;
        let client = kind.with(&retry().with_attempt_timeout(HASTY));
        let reply = client.oneshot(world.order()).await.expect("an answer");
        assert_eq!(reply.delivery.attempts(), 2);
        assert!(!reply.delivery.is_replay());
        assert_eq!(world.attempts().len(), 2);

        world.proxy.release();
        world.shop.saw(Outcome::Replayed).await;
        assert_eq!((world.shop.runs(), world.shop.charges().await), (1, 1));
    });
    tokio::join!(hyper, reqwest);
}

#[tokio::test]
async fn with_a_new_key_a_request_that_arrives_after_its_retry_is_another_charge() {
    let [hyper, reqwest] = KINDS.map(async |kind| {
        let world = World::new([Fault::HoldRequest]).await;
        kind.naively(|| world.order()).await;
        assert_eq!(world.shop.charges().await, 1);
        world.proxy.release();
        world.shop.charged(2).await;
    });
    tokio::join!(hyper, reqwest);
}
