//! A page of one origin and an API of another: the README's lists of headers, in a browser that insists on them.

use serde_json::json;

use crate::{
    checkout::Checkout,
    http_proxy::{Fault, Proxy, Request},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_sends_the_key_and_reads_that_it_is_a_replay() {
    let Some(checkout) = Checkout::open_with_two_origins().await else {
        return;
    };
    checkout.script([Fault::LoseAnswer]);
    checkout.browser.click("pay").await;
    let id = checkout.charged_once().await;
    let answer = checkout.browser.text("answer").await;
    assert!(answer.starts_with("replayed"), "{answer}");

    let charge = checkout.shop.charge().await;
    assert_eq!(charge.id, id);
    assert_eq!(Checkout::key_of(&checkout.sent()), charge.key);
    let origin = checkout.url.trim_end_matches('/');
    for sent in checkout.sent() {
        assert_eq!(sent.header("origin"), [origin]);
    }
    // Asked without a key, where one is required, and without a session.
    let asked = preflights(&checkout);
    assert!(!asked.is_empty());
    for preflight in asked {
        let wanted = preflight.header("access-control-request-headers");
        assert_eq!(wanted, ["content-type,idempotency-key"]);
        assert_eq!(preflight.header("idempotency-key"), [""; 0]);
    }
    assert_eq!(checkout.shop.records().await, 1);
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_an_origin_that_is_not_allowed_doesn_t_come_to_send() {
    let Some(checkout) = Checkout::open_with_two_origins().await else {
        return;
    };
    // The same page from another port.
    let stranger = Proxy::start(checkout.shop.address).await;
    let url = format!("http://{}/", stranger.address());
    checkout.browser.open(&url).await;
    checkout.browser.hears("The shop doesn’t answer").await;
    let script = "
        const headers = { 'content-type': 'application/json', 'idempotency-key': 'k' };
        const request = { method: 'POST', headers, body: '{}', credentials: 'include' };
        await fetch(arguments[0] + '/charges', request)";
    let api = format!("http://{}", checkout.proxy.address());
    let failed = checkout.browser.run_async(script, &[json!(api)]).await;
    assert_eq!(failed, "TypeError: Failed to fetch");

    assert_eq!(preflights(&checkout).len(), 1);
    assert_eq!(checkout.sent(), []);
    assert_eq!(checkout.shop.records().await, 0);
    checkout.close().await;
}

fn preflights(checkout: &Checkout) -> Vec<Request> {
    checkout.proxy.requests("OPTIONS /charges")
}
