//! A shop, the proxy before it, and what is asked of them.

use std::net::SocketAddr;

use http::Request;

use super::{
    clients::{Body, body},
    http_proxy::{self, Fault, Proxy},
    shop::Shop,
};

pub const ORDER: &str = "amount=1000&currency=eur";

#[derive(Debug)]
pub struct World {
    pub shop: Shop,
    pub proxy: Proxy,
}

impl World {
    /// The next requests meet these.
    pub async fn new(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self::of(Shop::protected().await, faults).await
    }

    pub async fn of(shop: Shop, faults: impl IntoIterator<Item = Fault>) -> Self {
        let proxy = Proxy::start(shop.address).await;
        proxy.script("", faults);
        Self { shop, proxy }
    }

    /// A charge, without a key.
    pub fn order(&self) -> Request<Body> {
        order(self.proxy.address())
    }

    /// All attempts, which are the same to the byte, the key included.
    pub fn attempts(&self) -> Vec<http_proxy::Request> {
        let attempts = self.proxy.requests("");
        let longest = attempts.iter().max_by_key(|attempt| attempt.body.len());
        for attempt in &attempts {
            let longest = longest.expect("at least this one");
            assert_eq!(attempt.head, longest.head);
            // One that was cut in its middle is the beginning.
            assert!(longest.body.starts_with(&attempt.body));
        }
        attempts
    }
}

pub fn order(address: SocketAddr) -> Request<Body> {
    Request::post(format!("http://{address}/v1/charges"))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(body(ORDER))
        .expect("a request")
}
