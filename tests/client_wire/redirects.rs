//! Redirects: the key belongs to the call, and isn't told to another origin.

use std::net::SocketAddr;

use axum::{Router, http::header::LOCATION, routing::post};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::net::TcpListener;
use tower::{ServiceBuilder, ServiceExt};
use tower_http::follow_redirect::FollowRedirectLayer;

use super::{
    clients::{KINDS, hyper, retry},
    http_proxy::Proxy,
    shop::Shop,
    world::{World, order},
};

const REDIRECTS: [StatusCode; 2] = [StatusCode::SEE_OTHER, StatusCode::TEMPORARY_REDIRECT];

/// A server whose charges are elsewhere.
async fn moved(status: StatusCode, to: SocketAddr) -> Proxy {
    let location = format!("http://{to}/v1/charges");
    let app = Router::new().route(
        "/v1/charges",
        post(async move || (status, [(LOCATION, location)])),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    Proxy::start(address).await
}

#[tokio::test]
async fn a_redirect_is_the_caller_s_to_follow() {
    for kind in KINDS {
        for status in REDIRECTS {
            let elsewhere = World::new([]).await;
            let here = moved(status, elsewhere.proxy.address()).await;
            let reply = kind.with(&retry()).oneshot(order(here.address())).await;
            let reply = reply.expect("an answer");
            assert_eq!((reply.status, reply.delivery.attempts()), (status, 1));
            assert!(reply.headers.contains_key(LOCATION));
            assert_eq!(here.requests("")[0].key(), reply.delivery.key().as_str());
            assert_eq!(elsewhere.proxy.requests(""), []);
        }
    }
}

/// Why the adapter insists.
#[tokio::test]
async fn reqwest_left_to_itself_tells_the_key_to_the_other_origin() {
    let elsewhere = World::new([]).await;
    let here = moved(StatusCode::TEMPORARY_REDIRECT, elsewhere.proxy.address()).await;
    let client = reqwest::Client::builder().no_proxy().build();
    let request = client
        .expect("a client")
        .post(format!("http://{}/v1/charges", here.address()));
    let answer = request.header("idempotency-key", "order-1").send().await;
    assert_ne!(
        answer.expect("an answer").status(),
        StatusCode::TEMPORARY_REDIRECT
    );
    assert_eq!(elsewhere.proxy.requests("")[0].key(), "order-1");
}

#[tokio::test]
async fn a_layer_outside_that_follows_a_redirect_doesn_t_carry_the_key() {
    let shop = Shop::protected().await;
    let elsewhere = Proxy::start(shop.address).await;
    let here = moved(StatusCode::SEE_OTHER, elsewhere.address()).await;
    let client = ServiceBuilder::new()
        .layer(FollowRedirectLayer::new())
        .layer(retry())
        .service(hyper(false));
    let order = Request::post(format!("http://{}/v1/charges", here.address()));
    let order = order
        .body(Full::<Bytes>::from("amount=1000"))
        .expect("a request");
    let answer = client.oneshot(order).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);

    assert_eq!(here.requests("")[0].header("idempotency-key").len(), 1);
    let followed = elsewhere.requests("GET /v1/charges");
    assert_eq!(followed.len(), 1);
    assert_eq!(followed[0].header("idempotency-key"), [""; 0]);
    assert_eq!(shop.charges().await, 0);
}
