//! Whose purchase it is.

use std::mem;

use serde_json::json;

use crate::{browser::Browser, checkout::Checkout, servers::chromium};

#[tokio::test(flavor = "multi_thread")]
async fn another_session_gets_neither_the_answer_nor_the_charge() {
    let Some(mut checkout) = Checkout::open().await else {
        return;
    };
    checkout.browser.click("pay").await;
    let id = checkout.charged_once().await;
    let readable = checkout.browser.run("return document.cookie", &[]).await;
    assert_eq!(readable, "", "no script can take the session away");
    let purchase = checkout.purchase().await;
    let key = purchase["key"].as_str().expect("a key");
    let body = purchase["body"].as_str().expect("a body");

    let other = checkout.browser.another().await;
    mem::replace(&mut checkout.browser, other).leave().await;
    checkout.load().await;
    let refused = checkout.send(key, body).await;
    assert_eq!(
        (&refused[0], &refused[2]["code"]),
        (&json!(403), &json!("another_session"))
    );
    let order =
        json!({ "customer": checkout.customer().await, "items": { "mug": 1 }, "amount": 1400 });
    let own = checkout.send(key, &order.to_string()).await;
    assert_eq!((&own[0], &own[1]), (&json!(201), &json!(null)));
    assert_ne!(own[2]["id"], id);
    assert_eq!(checkout.shop.charges().await.len(), 2);

    checkout.browser.forget_cookies().await;
    let nobody = checkout.send(key, &order.to_string()).await;
    assert_eq!(
        (&nobody[0], &nobody[2]["code"]),
        (&json!(401), &json!("no_session"))
    );
    assert_eq!(checkout.shop.charges().await.len(), 2);
    checkout.close().await;
}

/// The key is another one for another customer, so that the retry would be a second charge.
#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_whose_session_is_gone_is_not_charged_to_the_next_one() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    checkout.pay_without_an_answer().await;
    checkout.script([]);
    checkout.browser.forget_cookies().await;
    checkout.browser.click("again").await;
    checkout.browser.find("#status:empty").await;
    checkout.ends("unanswered").await;
    let detail = checkout.browser.text("detail").await;
    assert!(detail.contains("There is no session"), "{detail}");

    // This makes a new one.
    checkout.browser.reload().await;
    checkout.ends("unknown").await;
    let detail = checkout.browser.text("detail").await;
    assert!(detail.contains("another session"), "{detail}");
    checkout.shop.charge().await;
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_cookies_and_storage_nothing_is_sent() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let chromium = chromium().expect("it is there");
    let blocked = json!({ "profile.default_content_setting_values.cookies": 2 });
    let strict = Browser::with(chromium, blocked).await;
    strict.open(&checkout.url).await;
    strict.hears("lets no page keep").await;
    strict.find("#cart[hidden]").await;
    assert_eq!(checkout.sent(), []);
    strict.end().await;
    checkout.close().await;
}
