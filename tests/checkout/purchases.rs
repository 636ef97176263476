//! What a person does.

use serde_json::json;
use uuid::Uuid;

use crate::{
    checkout::Checkout,
    shop::{Charge, Gate},
};

const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_is_charged_once_and_a_new_one_once_more() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    for count in 1..=2 {
        checkout.browser.click("pay").await;
        let id = checkout.charged_once().await;

        let charges = checkout.shop.charges().await;
        assert_eq!(charges.len(), count);
        let charge = &charges[count - 1];
        assert_eq!(charge.id, id);
        assert_eq!(
            (&charge.items, charge.amount),
            (&json!({ "beans": 1, "mug": 2 }), 3750)
        );
        let sent = checkout.sent();
        assert_eq!(sent.len(), count);
        assert_eq!(sent[count - 1].key(), charge.key);
        Uuid::try_parse(&charge.key).expect("a UUID");
        let answer = checkout.browser.text("answer").await;
        assert!(answer.starts_with("first"), "{answer}");
        checkout.start_anew().await;
    }
    // The same cart, and another key.
    let charges = checkout.shop.charges().await;
    assert_ne!(charges[0].key, charges[1].key);
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_double_click_is_one_purchase() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let gate = Gate::close(checkout.shop.address).await;
    checkout.browser.click_twice("pay").await;
    gate.holds_one().await;
    gate.open().await;

    checkout.charged_once().await;
    let charge = checkout.shop.charge().await;
    assert_eq!(Checkout::key_of(&checkout.sent()), charge.key);
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_during_a_charge_goes_on_with_the_same_purchase() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let gate = Gate::close(checkout.shop.address).await;
    checkout.browser.click("pay").await;
    gate.holds_one().await;
    for _ in 0..2 {
        checkout.browser.reload().await;
        checkout.browser.hears("being made").await;
    }
    gate.open().await;

    is_the_charge_of_the_first_request(&checkout).await;
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_during_a_charge_and_comes_back_sees_its_end() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let gate = Gate::close(checkout.shop.address).await;
    checkout.browser.click("pay").await;
    gate.holds_one().await;
    let elsewhere = format!("{}style.css", checkout.url);
    checkout.browser.open(&elsewhere).await;
    checkout.browser.back().await;
    checkout.browser.hears("being made").await;
    gate.open().await;

    is_the_charge_of_the_first_request(&checkout).await;
    checkout.close().await;
}

async fn is_the_charge_of_the_first_request(checkout: &Checkout) -> Charge {
    let id = checkout.charged_once().await;
    let charge = checkout.shop.charge().await;
    assert_eq!(charge.id, id);
    assert_eq!(Checkout::key_of(&checkout.sent()), charge.key);
    let answer = checkout.browser.text("answer").await;
    assert!(answer.starts_with("replayed"), "{answer}");
    charge
}

#[tokio::test(flavor = "multi_thread")]
async fn back_and_forward_after_a_charge_send_nothing() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    checkout.browser.click("pay").await;
    let id = checkout.charged_once().await;
    checkout
        .browser
        .open(&format!("{}style.css", checkout.url))
        .await;
    checkout.browser.back().await;
    assert_eq!(checkout.charged_once().await, id);
    checkout.browser.forward().await;
    checkout.browser.back().await;
    assert_eq!(checkout.charged_once().await, id);
    checkout.browser.reload().await;
    assert_eq!(checkout.charged_once().await, id);

    assert_eq!(checkout.sent().len(), 1);
    assert_eq!(checkout.shop.charge().await.id, id);
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_that_is_killed_during_a_charge_still_knows_the_key() {
    let Some(mut checkout) = Checkout::open().await else {
        return;
    };
    // Chromium writes cookies down half a minute later, or at its end.
    checkout.browser = checkout.browser.restart().await;
    checkout.load().await;
    let gate = Gate::close(checkout.shop.address).await;
    checkout.browser.click("pay").await;
    gate.holds_one().await;
    checkout.browser = checkout.browser.kill_and_restart().await;
    checkout.browser.open(&checkout.url).await;
    checkout.browser.hears("being made").await;
    gate.open().await;

    is_the_charge_of_the_first_request(&checkout).await;
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_it_goes_without_a_mouse() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let browser = &checkout.browser;
    let mut order = vec![];
    while order.last().is_none_or(|id| id != "pay") {
        assert!(order.len() < 10, "{order:?}");
        browser.press(TAB).await;
        order.push(browser.focus().await);
    }
    assert_eq!(order, ["beans", "mug", "filters", "pay"]);
    browser.press(ENTER).await;

    // What it has come to is what is read next.
    checkout.charged_once().await;
    assert_eq!(browser.focus().await, "result");
    browser.press(TAB).await;
    assert_eq!(browser.focus().await, "new");
    browser.press(" ").await;
    browser.find("#result[hidden]").await;
    assert_eq!(browser.focus().await, "pay");

    // From within a field as well.
    browser
        .find("#filters")
        .await
        .send_keys(ENTER)
        .await
        .expect("a key");
    checkout.charged_once().await;
    assert_eq!(checkout.shop.charges().await.len(), 2);
    checkout.close().await;
}
