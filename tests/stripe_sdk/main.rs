//! A client that nobody here wrote: Stripe's SDK for Python mints a key for each charge, and retries by its own rules.
#![cfg(unix)]
#![allow(unreachable_pub, reason = "nothing outside of the tests is reached")]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../servers/external.rs"]
mod external;
#[path = "../http_proxy/mod.rs"]
mod http_proxy;
mod sdk;
#[path = "../shop/mod.rs"]
mod shop;

use std::collections::HashSet;

use http::StatusCode;
use http_proxy::{Fault, Proxy};
use sdk::{Came, Sdk};
use shop::Shop;
use tower_idempotency::{Outcome, RejectionKind};

const CHARGE: &str = "POST /v1/charges";
/// Seconds, where no attempt is to run into it.
const PATIENT: f32 = 60.0;
/// Seconds, where one is.
const HASTY: f32 = 2.0;

/// The charge that came, from a run or a replay.
fn charged(came: &Came) -> bool {
    matches!(came, Came::Charge { id, amount: 1000, .. } if id.starts_with("ch_"))
}

/// The first charge.
fn first(replayed: bool) -> Came {
    Came::Charge {
        id: "ch_1".to_owned(),
        amount: 1000,
        replayed,
    }
}

/// How many attempts there were, all with one key and the same bytes of the body.
fn attempts(proxy: &Proxy) -> usize {
    let requests = proxy.requests(CHARGE);
    let keys: HashSet<_> = requests.iter().map(|request| request.key()).collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let whole = "amount=1000&currency=eur&source=tok_visa";
    for request in &requests {
        let body = request.body_text();
        // One that was cut in its middle is the beginning.
        assert!(!body.is_empty() && whole.starts_with(&body), "{body}");
    }
    requests.len()
}

/// A charge whose first attempt meets this is made by the second one, or replayed to it.
async fn strikes(sdk: &Sdk, fault: Fault, came: Came) {
    let shop = Shop::protected().await;
    let proxy = Proxy::start(shop.address).await;
    proxy.script(CHARGE, [fault.clone()]);
    let call = sdk.charge(proxy.address(), PATIENT, None);
    assert_eq!(call.came().await, came, "{fault:?}");
    assert_eq!(shop.charges().await, 1, "{fault:?}");
    assert_eq!(attempts(&proxy), 2, "{fault:?}");
}

/// Without the layer it is made twice.
async fn charges_twice(sdk: &Sdk, fault: Fault) {
    let shop = Shop::unprotected().await;
    let proxy = Proxy::start(shop.address).await;
    proxy.script(CHARGE, [fault.clone()]);
    let call = sdk.charge(proxy.address(), PATIENT, None);
    assert!(charged(&call.came().await), "{fault:?}");
    assert_eq!(shop.charges().await, 2, "{fault:?}");
    assert_eq!(attempts(&proxy), 2, "{fault:?}");
}

#[tokio::test]
async fn a_request_that_is_lost_on_its_way_is_sent_again() {
    let Some(sdk) = Sdk::find() else { return };
    tokio::join!(
        strikes(&sdk, Fault::LoseRequest, first(false)),
        strikes(&sdk, Fault::CutRequest, first(false)),
    );
}

#[tokio::test]
async fn an_answer_that_is_lost_is_replayed_and_charged_again_without_the_layer() {
    let Some(sdk) = Sdk::find() else { return };
    tokio::join!(
        strikes(&sdk, Fault::LoseAnswer, first(true)),
        strikes(&sdk, Fault::ResetAnswer, first(true)),
        charges_twice(&sdk, Fault::LoseAnswer),
        charges_twice(&sdk, Fault::ResetAnswer),
    );
}

#[tokio::test]
async fn answers_of_409_and_503_are_retried() {
    let Some(sdk) = Sdk::find() else { return };
    let busy = |retry_after| {
        let headers = [("retry-after", retry_after)];
        Fault::answer(StatusCode::SERVICE_UNAVAILABLE, &headers, "{}")
    };
    tokio::join!(
        strikes(&sdk, Fault::in_flight(), first(false)),
        strikes(&sdk, busy("1"), first(false)),
        strikes(&sdk, busy("Sun, 06 Nov 1994 08:49:37 GMT"), first(false)),
    );
}

#[tokio::test]
async fn an_answer_beyond_the_timeout_is_replayed_and_charged_again_without_the_layer() {
    let Some(sdk) = Sdk::find() else { return };
    let charges = async |shop: Shop, came: Came| {
        let proxy = Proxy::start(shop.address).await;
        proxy.script(CHARGE, [Fault::HoldAnswer]);
        assert_eq!(sdk.charge(proxy.address(), HASTY, None).came().await, came);
        assert_eq!(attempts(&proxy), 2);
        shop.charges().await
    };
    let second = Came::Charge {
        id: "ch_2".to_owned(),
        amount: 1000,
        replayed: false,
    };
    let (with, without) = tokio::join!(
        charges(Shop::protected().await, first(true)),
        charges(Shop::unprotected().await, second),
    );
    assert_eq!((with, without), (1, 2));
}

#[tokio::test]
async fn a_request_that_arrives_after_its_retry_changes_nothing_and_charges_without_the_layer() {
    let Some(sdk) = Sdk::find() else { return };
    let retried = async |shop: &Shop| {
        let proxy = Proxy::start(shop.address).await;
        proxy.script(CHARGE, [Fault::HoldRequest]);
        let came = sdk.charge(proxy.address(), HASTY, None).came().await;
        assert_eq!(came, first(false));
        assert_eq!((shop.charges().await, attempts(&proxy)), (1, 2));
        proxy.release();
        proxy
    };
    let (with, without) = (Shop::protected().await, Shop::unprotected().await);
    let _proxies = tokio::join!(retried(&with), retried(&without));
    with.saw(Outcome::Replayed).await;
    without.charged(2).await;
    assert_eq!(with.charges().await, 1);
}

#[tokio::test]
async fn a_retry_that_meets_the_first_attempt_in_flight_gets_its_charge() {
    let Some(sdk) = Sdk::find() else { return };
    let shop = Shop::protected().await;
    let proxy = Proxy::start(shop.address).await;
    shop.close();
    let call = sdk.charge(proxy.address(), HASTY, None);
    shop.saw(Outcome::Refused(RejectionKind::InFlight)).await;
    shop.open();
    assert_eq!(call.came().await, first(true));
    assert_eq!((shop.runs(), shop.charges().await), (1, 1));
    assert!(attempts(&proxy) >= 3);
}

#[tokio::test]
async fn a_server_that_is_down_gets_the_charge_when_it_is_back() {
    let Some(sdk) = Sdk::find() else { return };
    let shop = Shop::protected().await;
    let proxy = Proxy::start(shop.address).await;
    proxy.refuse().await;
    let mut call = sdk.charge(proxy.address(), PATIENT, None);
    call.retries(1).await;
    proxy.accept().await;
    assert_eq!(call.came().await, first(false));
    assert_eq!((shop.charges().await, attempts(&proxy)), (1, 1));
}

#[tokio::test]
async fn the_sdk_gives_up_on_half_an_answer_and_its_caller_needs_a_key_to_go_on() {
    let Some(sdk) = Sdk::find() else { return };
    let lost = Came::Error {
        error: "APIConnectionError".to_owned(),
        status: None,
    };
    let shop = Shop::protected().await;
    let proxy = Proxy::start(shop.address).await;
    proxy.script(CHARGE, [Fault::CutAnswer, Fault::Pass, Fault::CutAnswer]);

    // With a key of the caller's own the next call gets the charge.
    let own = Some("order-1");
    let came = sdk.charge(proxy.address(), PATIENT, own).came().await;
    assert_eq!(came, lost);
    let came = sdk.charge(proxy.address(), PATIENT, own).came().await;
    assert_eq!(came, first(true));
    assert_eq!((shop.charges().await, attempts(&proxy)), (1, 2));

    // The key that the SDK minted is gone with its call: nothing can tell the next one from a new charge.
    let came = sdk.charge(proxy.address(), PATIENT, None).came().await;
    assert_eq!(came, lost);
    let came = sdk.charge(proxy.address(), PATIENT, None).came().await;
    assert!(charged(&came));
    assert_eq!(shop.charges().await, 3);
}

#[tokio::test]
async fn a_429_is_retried_only_where_the_server_says_so() {
    let Some(sdk) = Sdk::find() else { return };
    let too_many =
        |header| Fault::answer(StatusCode::TOO_MANY_REQUESTS, &[header], "{\"error\":{}}");
    let told = too_many(("stripe-should-retry", "true"));
    strikes(&sdk, told, first(false)).await;

    let shop = Shop::protected().await;
    let proxy = Proxy::start(shop.address).await;
    proxy.script(CHARGE, [too_many(("retry-after", "1"))]);
    let came = sdk.charge(proxy.address(), PATIENT, Some("order-1")).came();
    let limited = Came::Error {
        error: "RateLimitError".to_owned(),
        status: Some(429),
    };
    assert_eq!(came.await, limited);
    assert_eq!((shop.charges().await, attempts(&proxy)), (0, 1));
    // The limit is no answer to the key: the caller may come again with it.
    let came = sdk.charge(proxy.address(), PATIENT, Some("order-1")).came();
    assert_eq!(came.await, first(false));
    assert_eq!((shop.charges().await, attempts(&proxy)), (1, 2));
}

#[tokio::test]
async fn a_409_is_final_where_the_server_says_so() {
    let Some(sdk) = Sdk::find() else { return };
    let shop = Shop::protected().await;
    let proxy = Proxy::start(shop.address).await;
    let headers = [("stripe-should-retry", "false")];
    let conflict = Fault::answer(StatusCode::CONFLICT, &headers, "{\"error\":{}}");
    proxy.script(CHARGE, [conflict]);
    let told = Came::Error {
        error: "APIError".to_owned(),
        status: Some(409),
    };
    let came = sdk.charge(proxy.address(), PATIENT, None).came().await;
    assert_eq!((came, attempts(&proxy)), (told, 1));
}

#[tokio::test]
async fn another_charge_under_a_key_is_an_error_of_the_api_that_is_not_retried() {
    let Some(sdk) = Sdk::find() else { return };
    let shop = Shop::protected().await;
    let proxy = Proxy::start(shop.address).await;
    let key = Some("order-1");
    let came = sdk.charge(proxy.address(), PATIENT, key).came().await;
    assert_eq!(came, first(false));
    let other = sdk.charge_of(2000, proxy.address(), PATIENT, key);
    let reused = Came::Error {
        error: "APIError".to_owned(),
        status: Some(422),
    };
    assert_eq!(other.came().await, reused);
    assert_eq!(proxy.requests(CHARGE).len(), 2);
    assert_eq!(shop.charges().await, 1);
}
