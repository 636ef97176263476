//! One purchase in two tabs.

use std::collections::BTreeSet;

use serde_json::json;

use crate::{checkout::Checkout, http_proxy::Request, shop::Gate};

/// Without the mouse, which is in one tab at a time.
const PRESS_AT: &str = "
    const [time] = arguments;
    setTimeout(() => document.getElementById('cart').requestSubmit(), time - Date.now())";

#[tokio::test(flavor = "multi_thread")]
async fn two_tabs_that_pay_at_once_make_one_purchase() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    checkout.browser.open_tab(&checkout.url).await;
    checkout
        .browser
        .find("#cart:not([hidden]) #pay:enabled")
        .await;
    for round in 1..=3 {
        let before = checkout.sent().len();
        let gate = Gate::close(checkout.shop.address).await;
        let soon = checkout.browser.run("return Date.now() + 300", &[]).await;
        for tab in 0..2 {
            checkout.browser.go_to_tab(tab).await;
            let time = std::slice::from_ref(&soon);
            checkout.browser.run(PRESS_AT, time).await;
        }
        gate.holds_one().await;
        checkout.has_sent(before + 2).await;
        gate.open().await;

        for tab in 0..2 {
            checkout.browser.go_to_tab(tab).await;
            checkout.charged_once().await;
        }
        let charges = checkout.shop.charges().await;
        assert_eq!(charges.len(), round);
        assert_eq!(
            Checkout::key_of(&checkout.sent()[before..]),
            charges[round - 1].key
        );
        checkout.start_anew().await;
        // The other one hears of it.
        checkout.browser.go_to_tab(0).await;
        checkout.browser.find("#result[hidden]").await;
        checkout.browser.find("#pay:enabled").await;
    }
    let keys: BTreeSet<String> = checkout.sent().iter().map(Request::key).collect();
    assert_eq!(keys.len(), 3);
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_tab_has_begun_is_ended_before_another_cart_is_paid() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    checkout.browser.open_tab(&checkout.url).await;
    checkout
        .browser
        .find("#cart:not([hidden]) #pay:enabled")
        .await;
    checkout.browser.go_to_tab(0).await;
    checkout.pay_without_an_answer().await;

    checkout.browser.go_to_tab(1).await;
    checkout.ends("unanswered").await;
    checkout.put("mug", 5).await;
    checkout.script([]);
    let press = "document.getElementById('cart').requestSubmit()";
    checkout.browser.run(press, &[]).await;
    let id = checkout.charged_once().await;

    let charge = checkout.shop.charge().await;
    assert_eq!(
        (charge.id, charge.items),
        (id, json!({ "beans": 1, "mug": 2 }))
    );
    Checkout::key_of(&checkout.sent());
    checkout.close().await;
}

/// Begins when the other tab says so.
const FOLLOWS: &str = "
    import('/purchase.js').then(({ begin }) => {
        const other = new BroadcastChannel('test');
        other.onmessage = async ({ data }) => {
            if (data === 'begin') other.postMessage((await begin({ amount: 2 })).key);
        };
        document.body.dataset.follows = '';
    })";
const LEADS: &str = "
    const { begin, settle, finish } = await import('/purchase.js');
    const other = new BroadcastChannel('test');
    let differed = 0;
    for (let round = 0; round < 200; round += 1) {
        const theirs = new Promise((resolve) => (other.onmessage = ({ data }) => resolve(data)));
        other.postMessage('begin');
        const { key } = await begin({ amount: 1 });
        if ((await theirs) !== key) differed += 1;
        await settle(key, { kind: 'charged' });
        await finish(key);
    }
    return differed";

/// What one tab has stored must be seen by the other one in the next moment.
#[tokio::test(flavor = "multi_thread")]
async fn two_tabs_never_make_two_keys_at_the_same_moment() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    checkout.browser.open_tab(&checkout.url).await;
    checkout.browser.run(FOLLOWS, &[]).await;
    checkout.browser.find("[data-follows]").await;
    checkout.browser.go_to_tab(0).await;
    let differed = checkout.browser.run_async(LEADS, &[]).await;
    assert_eq!(differed, 0);
    checkout.close().await;
}
