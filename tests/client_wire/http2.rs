//! HTTP/2, where a request is a stream that can be reset, and a connection that breaks takes all of them along.

use std::{net::SocketAddr, sync::Arc};

use http::{StatusCode, Version};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tower::ServiceExt;
use tower_idempotency::{Outcome, RejectionKind};

use super::{
    clients::{HTTP2, retry},
    shop::Shop,
    world::order,
};

#[tokio::test]
async fn over_http_2_a_charge_is_made_once_and_replayed_to_a_resumed_call() {
    for kind in HTTP2 {
        let shop = Shop::protected().await;
        let client = kind.with(&retry());
        let reply = client.clone().oneshot(order(shop.address)).await;
        let reply = reply.expect("an answer");
        assert_eq!(
            (reply.status, reply.version),
            (StatusCode::OK, Version::HTTP_2)
        );
        assert_eq!(reply.delivery.attempts(), 1);

        let mut again = order(shop.address);
        again.extensions_mut().insert(reply.delivery.key().clone());
        let again = client.oneshot(again).await.expect("an answer");
        assert!(again.delivery.is_replay());
        assert_eq!(again.body, reply.body);
        assert_eq!(shop.charges().await, 1);
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_is_followed_by_the_replay_and_a_new_key_charges_again() {
    for kind in HTTP2 {
        let shop = Shop::protected().await;
        shop.break_off(1);
        let reply = kind.with(&retry()).oneshot(order(shop.address)).await;
        let reply = reply.expect("an answer");
        assert!(reply.text().contains(r#""id":"ch_1""#));
        assert!(reply.delivery.is_replay());
        assert_eq!((reply.delivery.attempts(), shop.charges().await), (2, 1));

        let shop = Shop::protected().await;
        shop.break_off(1);
        kind.naively(|| order(shop.address)).await;
        assert_eq!(shop.charges().await, 2);
    }
}

#[tokio::test]
async fn a_connection_that_breaks_during_the_run_is_followed_by_the_charge_on_another() {
    for kind in HTTP2 {
        let shop = Shop::protected().await;
        shop.close();
        let cut = Arc::new(Notify::new());
        let relay = relay(shop.address, Arc::clone(&cut)).await;
        let call = tokio::spawn(kind.with(&retry()).oneshot(order(relay)));
        shop.ran(1).await;
        cut.notify_one();
        shop.saw(Outcome::Refused(RejectionKind::InFlight)).await;
        shop.open();

        let reply = call.await.expect("a task").expect("an answer");
        assert!(reply.delivery.is_replay());
        assert!(reply.delivery.attempts() >= 3);
        assert_eq!((shop.runs(), shop.charges().await), (1, 1));
    }
}

/// Passes all bytes on, one connection after the other. The one that is open can be cut.
async fn relay(upstream: SocketAddr, cut: Arc<Notify>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.expect("a client");
            let mut server = TcpStream::connect(upstream).await.expect("a server");
            tokio::select! {
                // However that ended, it did.
                _ = copy_bidirectional(&mut client, &mut server) => {}
                () = cut.notified() => client.set_zero_linger().expect("a socket"),
            }
        }
    });
    address
}
