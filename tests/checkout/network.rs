//! What happens on the way.

use http::StatusCode;
use serde_json::json;

use crate::{checkout::Checkout, http_proxy::Fault};

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_lost_on_the_way_is_sent_again_as_it_was() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let html = [("content-type", "text/html")];
    let elsewhere = [("location", "/style.css")];
    let later = [("retry-after", "1")];
    let slow_down = r#"{"code":"too_many_requests"}"#;
    // Each with whether the charge had been made before.
    let faults = [
        (Fault::LoseRequest, false),
        (Fault::CutRequest, false),
        (Fault::LoseAnswer, true),
        (Fault::ResetAnswer, true),
        (Fault::CutAnswer, true),
        (Fault::in_flight(), false),
        (
            Fault::answer(StatusCode::BAD_GATEWAY, &html, "<p>Sorry"),
            false,
        ),
        (
            Fault::answer(StatusCode::OK, &html, "<p>Log in first"),
            false,
        ),
        (Fault::answer(StatusCode::FOUND, &elsewhere, ""), false),
        (
            Fault::answer(StatusCode::TOO_MANY_REQUESTS, &later, slow_down),
            false,
        ),
    ];
    for (index, (fault, made)) in faults.into_iter().enumerate() {
        let before = checkout.sent().len();
        checkout.script([fault.clone()]);
        checkout.browser.click("pay").await;
        let id = checkout.charged_once().await;

        let charges = checkout.shop.charges().await;
        assert_eq!(charges.len(), index + 1, "{fault:?}");
        assert_eq!(charges[index].id, id);
        let sent = &checkout.sent()[before..];
        assert!(sent.len() >= 2, "{fault:?}");
        assert_eq!(sent[sent.len() - 1].key(), charges[index].key);
        if !matches!(fault, Fault::CutRequest) {
            Checkout::key_of(sent);
        }
        let answer = checkout.browser.text("answer").await;
        assert_eq!(answer.starts_with("replayed"), made, "{fault:?}: {answer}");
        checkout.start_anew().await;
    }
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_is_away_is_asked_again_when_it_is_back() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    checkout.proxy.refuse().await;
    checkout.browser.click("pay").await;
    checkout.ends("unanswered").await;
    assert_eq!(checkout.shop.charges().await, []);
    let purchase = checkout.purchase().await;

    checkout.proxy.accept().await;
    checkout.browser.click("again").await;
    checkout.charged_once().await;
    let charge = checkout.shop.charge().await;
    assert_eq!(purchase["key"], charge.key);
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_cart_waits_until_it_is_known_what_became_of_the_one_before() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    checkout.pay_without_an_answer().await;
    checkout.put("mug", 5).await;
    assert_eq!(checkout.browser.text("total").await, "€79.50");
    for way_to_a_new_key in ["#pay[hidden]", "#new[hidden]"] {
        checkout.browser.find(way_to_a_new_key).await;
    }

    checkout.script([]);
    checkout.browser.click("again").await;
    let id = checkout.charged_once().await;
    let first = checkout.shop.charge().await;
    assert_eq!((&first.id, first.amount), (&id, 3750));
    assert_eq!(Checkout::key_of(&checkout.sent()), first.key);
    let detail = checkout.browser.text("detail").await;
    assert!(detail.contains("cart has changed"), "{detail}");

    checkout.start_anew().await;
    checkout.browser.click("pay").await;
    checkout.charged_once().await;
    let charges = checkout.shop.charges().await;
    assert_eq!(charges.len(), 2);
    assert_ne!(charges[1].key, first.key);
    assert_eq!(
        (&charges[1].items, charges[1].amount),
        (&json!({ "beans": 1, "mug": 5 }), 7950)
    );
    checkout.close().await;
}
