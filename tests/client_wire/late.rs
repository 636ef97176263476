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
    for kind in KINDS {
        let world = World::new([]).await;
        world.shop.close();
        let client = kind.with(&retry().with_attempt_timeout(HASTY / 4).with_attempts(3));
        let call = tokio::spawn(client.oneshot(world.order()));
        let in_flight = Outcome::Refused(RejectionKind::InFlight);
        world.shop.saw(in_flight).await;
        world.shop.open();
        let reply = call.await.expect("a task").expect("an answer");
        assert_eq!(reply.status, StatusCode::OK);
        assert!(reply.delivery.is_replay());
        assert_eq!((world.shop.runs(), world.shop.charges().await), (1, 1));
        assert!(world.attempts().len() >= 3);

        // With a new key the retry doesn't know of the first attempt.
        let world = World::new([]).await;
        world.shop.close();
        let naive = kind.naively(|| world.order());
        let retried = async {
            world.proxy.received(2).await;
            world.shop.open();
        };
        tokio::join!(naive, retried);
        world.shop.charged(2).await;
    }
}

#[tokio::test]
async fn a_request_that_arrives_after_its_retry_changes_nothing() {
    for kind in KINDS {
        let world = World::new([Fault::HoldRequest]).await;
        let client = kind.with(&retry().with_attempt_timeout(HASTY));
        let reply = client.oneshot(world.order()).await.expect("an answer");
        assert_eq!(reply.delivery.attempts(), 2);
        assert!(!reply.delivery.is_replay());
        assert_eq!(world.attempts().len(), 2);

        world.proxy.release();
        world.shop.saw(Outcome::Replayed).await;
        assert_eq!((world.shop.runs(), world.shop.charges().await), (1, 1));

        // With a new key for each attempt the late one is another charge.
        let world = World::new([Fault::HoldRequest]).await;
        kind.naively(|| world.order()).await;
        assert_eq!(world.shop.charges().await, 1);
        world.proxy.release();
        world.shop.charged(2).await;
    }
}
