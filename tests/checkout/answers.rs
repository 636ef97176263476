//! What the page makes of answers that are no charge.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{checkout::Checkout, http_proxy::Fault, server::fresh_key};

const DAY: i64 = 24 * 60 * 60 * 1000;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_used_for_something_else_is_no_reason_to_pay_again() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let key = fresh_key();
    let customer = checkout.customer().await;
    let mug = json!({ "customer": customer, "items": { "mug": 1 }, "amount": 1400 });
    let beans = json!({ "customer": customer, "items": { "beans": 1 }, "amount": 950 });
    assert_eq!(checkout.send(&key, &mug.to_string()).await[0], 201);
    checkout
        .plant(purchase(&checkout, &key, &beans, 0).await)
        .await;

    checkout.ends("unknown").await;
    let detail = checkout.browser.text("detail").await;
    assert!(
        detail.contains("another order, which may have been charged"),
        "{detail}"
    );
    assert_eq!(checkout.browser.text("reference").await, key);
    assert_eq!(checkout.shop.charge().await.amount, 1400);
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_keeps_its_key_until_somebody_has_looked() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    // SQLite ends the transaction by itself, and the layer can't tell what was committed.
    let trigger =
        "CREATE TRIGGER ends BEFORE INSERT ON charges BEGIN SELECT RAISE(ROLLBACK, 'ended'); END";
    checkout.shop.execute(trigger).await;
    checkout.browser.click("pay").await;
    checkout.ends("unknown").await;
    checkout.shop.execute("DROP TRIGGER ends").await;
    let key = checkout.browser.text("reference").await;
    checkout.browser.reload().await;
    checkout.ends("unknown").await;
    checkout.browser.click("again").await;
    checkout.browser.find("#status:empty").await;
    checkout.ends("unknown").await;
    assert_eq!(Checkout::key_of(&checkout.sent()), key);
    assert_eq!(checkout.shop.charges().await, []);

    checkout.start_anew().await;
    checkout.browser.click("pay").await;
    checkout.charged_once().await;
    assert_ne!(checkout.shop.charge().await.key, key);
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_shop_says_that_nothing_was_charged() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let key = fresh_key();
    let customer = checkout.customer().await;
    let cheap = json!({ "customer": customer, "items": { "mug": 1 }, "amount": 1 });
    checkout
        .plant(purchase(&checkout, &key, &cheap, 0).await)
        .await;
    checkout.ends("refused").await;
    let detail = checkout.browser.text("detail").await;
    assert!(detail.ends_with("Nothing was charged."), "{detail}");
    assert_eq!(checkout.shop.charges().await, []);

    checkout.start_anew().await;
    checkout.browser.click("pay").await;
    checkout.charged_once().await;
    assert_ne!(checkout.shop.charge().await.key, key);
    checkout.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_older_than_the_shop_s_memory_is_not_sent() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let customer = checkout.customer().await;
    let order = json!({ "customer": customer, "items": { "mug": 1 }, "amount": 1400 });
    let old = purchase(&checkout, &fresh_key(), &order, DAY).await;
    checkout.plant(old).await;
    checkout.ends("unknown").await;
    checkout.browser.click("again").await;
    checkout.browser.find("#status:empty").await;
    checkout.ends("unknown").await;
    assert_eq!(checkout.sent(), []);
    checkout.close().await;
}

/// Neither a charge nor a refusal of the shop's: the purchase stays, and the same request may come through later.
#[tokio::test(flavor = "multi_thread")]
async fn other_errors_end_nothing_and_are_shown_as_text() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let problem = [("content-type", "application/problem+json")];
    let marked = [problem[0], ("idempotent-replayed", "true")];
    let image = r#"{"detail":"<img src=x onerror=document.title='run'>"}"#;
    let answers = [
        (StatusCode::BAD_REQUEST, &problem[..], image, "unanswered"),
        (
            StatusCode::FORBIDDEN,
            &problem,
            r#"{"title":"Blocked"}"#,
            "unanswered",
        ),
        (
            StatusCode::OK,
            &problem,
            r#"{"id":"no charge"}"#,
            "unanswered",
        ),
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            &marked,
            "{}",
            "unanswered",
        ),
        (
            StatusCode::CONFLICT,
            &problem,
            r#"{"code":"response_not_kept"}"#,
            "unknown",
        ),
        (
            StatusCode::CONFLICT,
            &problem,
            r#"{"code":"toString"}"#,
            "unanswered",
        ),
    ];
    for (index, (status, headers, body, kind)) in answers.into_iter().enumerate() {
        let before = checkout.sent().len();
        checkout.script([Fault::answer(status, headers, body)]);
        checkout.browser.click("pay").await;
        checkout.ends(kind).await;
        assert_eq!(checkout.shop.charges().await.len(), index);
        let told: Value = serde_json::from_str(body).expect("JSON");
        if let Some(told) = told["detail"].as_str().or(told["title"].as_str()) {
            let shown = checkout.browser.text("detail").await;
            assert!(shown.starts_with(told), "{shown}");
        }

        checkout.browser.click("again").await;
        checkout.charged_once().await;
        assert_eq!(checkout.shop.charges().await.len(), index + 1, "{body}");
        let sent = &checkout.sent()[before..];
        assert_eq!(sent.len(), 2, "{body}");
        Checkout::key_of(sent);
        checkout.start_anew().await;
    }
    let title = checkout.browser.run("return document.title", &[]).await;
    assert_eq!(title, "Checkout");
    checkout.close().await;
}

/// What purchase.js promises by itself, whatever a page shows.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_belongs_to_its_key_and_a_certain_one_stays() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    let script = "
        const { begin, current, finish, settle } = await import('/purchase.js');
        const first = await begin({ amount: 1 });
        const second = await begin({ amount: 2 });
        await finish(first.key);
        await settle('another key', { kind: 'charged' });
        const unsettled = await current();
        const kinds = [];
        for (const kind of ['unknown', 'refused', 'charged']) {
            kinds.push((await settle(first.key, { kind })).outcome.kind);
        }
        await finish('another key');
        const settled = await current();
        await finish(first.key);
        const none = await current();
        const same = [second, unsettled, settled].every(({ key, body }) => key === first.key && body === JSON.stringify({ amount: 1 }));
        return { same, early: unsettled.outcome ?? null, kinds, none: none ?? null }";
    let told = checkout.browser.run_async(script, &[]).await;
    let kinds = ["unknown", "refused", "refused"];
    assert_eq!(
        told,
        json!({ "same": true, "early": null, "kinds": kinds, "none": null })
    );
    checkout.close().await;
}

/// As the page keeps it, made so long ago by the clock of the page.
async fn purchase(checkout: &Checkout, key: &str, order: &Value, age: i64) -> Value {
    let now = checkout.browser.run("return Date.now()", &[]).await;
    let made = now.as_i64().expect("a time") - age;
    json!({ "key": key, "body": order.to_string(), "made": made })
}
