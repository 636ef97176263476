//! Bodies of all kinds: each attempt has the same bytes, or there is only one.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_idempotency::client::GaveUp;

use super::{
    clients::{Body, KINDS, body, retry},
    http_proxy::Fault,
    world::World,
};

/// A body whose length nobody knows before its end.
struct Streamed(std::vec::IntoIter<Bytes>);

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|data| Ok(Frame::data(data))))
    }
}

fn streamed(parts: Vec<Bytes>) -> Body {
    Streamed(parts.into_iter()).boxed()
}

fn weigh(world: &World, content_type: &str, body: Body) -> Request<Body> {
    Request::post(format!("http://{}/weigh", world.proxy.address()))
        .header("content-type", content_type)
        .body(body)
        .expect("a request")
}

fn unavailable() -> Fault {
    Fault::answer(StatusCode::SERVICE_UNAVAILABLE, &[], "")
}

const FORM_DATA: &str =
    "--x\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n1000\r\n--x--\r\n";

#[tokio::test]
async fn every_kind_of_body_is_sent_again_to_the_byte() {
    let parts = || ["{\"amount\"", ":1000}"].map(Bytes::from).to_vec();
    let large = || vec![Bytes::from(vec![b'x'; 64 * 1024]); 15];
    type Make<'a> = &'a dyn Fn() -> Body;
    let bodies: [(&str, Make<'_>, usize); 5] = [
        ("application/json", &|| body("{\"amount\":1000}"), 15),
        ("application/json", &|| streamed(parts()), 15),
        (
            "multipart/form-data; boundary=x",
            &|| body(FORM_DATA),
            FORM_DATA.len(),
        ),
        ("application/octet-stream", &|| body(""), 0),
        (
            "application/octet-stream",
            &|| streamed(large()),
            15 * 64 * 1024,
        ),
    ];
    for kind in KINDS {
        for (content_type, body, size) in bodies {
            let faults = [
                Fault::LoseRequest,
                Fault::CutRequest,
                unavailable(),
                Fault::ResetAnswer,
            ];
            let world = World::new(faults).await;
            let request = weigh(&world, content_type, body());
            let reply = kind.with(&retry()).oneshot(request).await;
            let reply = reply.expect("an answer");
            assert_eq!((reply.status, &*reply.text()), (StatusCode::OK, "ch_1"));
            assert!(reply.delivery.is_replay());
            let attempts = world.attempts();
            assert_eq!(attempts.len(), 5, "{content_type} on {kind:?}");
            for attempt in [&attempts[0], &attempts[2], &attempts[3], &attempts[4]] {
                assert_eq!(attempt.body.len(), size, "{content_type} on {kind:?}");
            }
            assert_eq!(world.shop.charges().await, 1);
        }
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_sent_once_and_its_call_can_be_resumed() {
    for kind in KINDS {
        let world = World::new([Fault::LoseAnswer]).await;
        let order = || weigh(&world, "text/plain", streamed(vec![Bytes::from("1000"); 2]));
        let small = kind.with(&retry().with_request_body_limit(4));
        let failed = small.oneshot(order()).await;
        let failed = failed.expect_err("a lost answer");
        assert_eq!(
            (failed.attempts(), failed.gave_up()),
            (1, Some(GaveUp::Body))
        );
        assert_eq!(world.shop.charges().await, 1);

        let mut again = order();
        again
            .extensions_mut()
            .insert(failed.key().cloned().expect("its key"));
        let reply = kind.with(&retry()).oneshot(again).await.expect("an answer");
        assert_eq!(reply.text(), "ch_1");
        assert!(reply.delivery.is_replay());
        assert_eq!(world.shop.charges().await, 1);
    }
}
