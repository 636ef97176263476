//! Browsers: CORS outside of this layer, as the README has it, and what a cache may make of a replay.
#![cfg(feature = "memory")]
mod support;

use axum::{Router, routing};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use support::{
    Answer, Body, Runs,
    handler::{answering, layer, response},
    post, send,
    spy::Spy,
};
use tower::Layer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_idempotency::{MemoryStore, RejectionKind};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// With the lists of the README.
fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::mirror_request())
        .allow_methods([Method::POST])
        .allow_headers([KEY, header::CONTENT_TYPE])
        .expose_headers([REPLAYED, header::RETRY_AFTER])
}

fn app(runs: &Runs) -> Router {
    let runs = runs.clone();
    Router::new().route(
        "/charges",
        routing::post(async move || (StatusCode::CREATED, format!("run {}", runs.add()))),
    )
}

fn from(origin: &'static str, key: &str) -> Request<Body> {
    let mut request = post(key, "{}");
    let origin = HeaderValue::from_static(origin);
    request.headers_mut().insert(header::ORIGIN, origin);
    request
}

fn lines(answer: &Answer, name: HeaderName) -> Vec<&HeaderValue> {
    answer.head.headers.get_all(name).iter().collect()
}

fn names(answer: &Answer, list: HeaderName) -> Vec<&str> {
    let lines = lines(answer, list).into_iter();
    let texts = lines.map(|line| line.to_str().expect("names"));
    texts
        .flat_map(|text| text.split(',').map(str::trim))
        .collect()
}

#[tokio::test]
async fn a_preflight_request_is_none_of_the_layer_s_business() {
    let (runs, store) = (Runs::default(), Spy::new());
    let strict = || layer(store.clone()).require_key();
    let outside = app(&runs).layer(strict()).layer(cors());
    let inside = app(&runs).layer(cors()).layer(strict());
    for service in [outside, inside] {
        let preflight = Request::options("/charges")
            .header("origin", "https://shop.example")
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "idempotency-key")
            .body(Body::default())
            .expect("a valid request");
        let answer = send(&service, preflight).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let allowed = names(&answer, header::ACCESS_CONTROL_ALLOW_HEADERS);
        assert!(allowed.contains(&"idempotency-key"), "{answer:?}");
    }
    assert_eq!((store.calls(), runs.count()), (vec![], 0));
}

#[tokio::test]
async fn a_replay_to_another_origin_names_that_origin_and_no_other() {
    let runs = Runs::default();
    let service = app(&runs).layer(layer(MemoryStore::new())).layer(cors());
    for (origin, is_replay) in [
        ("https://shop.example", false),
        ("https://shop.example", true),
        ("https://till.example", true),
    ] {
        let answer = send(&service, from(origin, "k")).await;
        assert_eq!((answer.text(), answer.is_replay()), ("run 1", is_replay));
        assert_eq!(
            lines(&answer, header::ACCESS_CONTROL_ALLOW_ORIGIN),
            [origin]
        );
        let exposed = names(&answer, header::ACCESS_CONTROL_EXPOSE_HEADERS);
        assert_eq!(exposed, [REPLAYED.as_str(), header::RETRY_AFTER.as_str()]);
    }

    let refused = send(&service, from("https://till.example", "")).await;
    assert_eq!(refused.rejection(), Some(RejectionKind::InvalidKey));
    let allowed = lines(&refused, header::ACCESS_CONTROL_ALLOW_ORIGIN);
    assert_eq!(allowed, ["https://till.example"]);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_replay_is_as_cacheable_as_the_first_answer_and_no_more() {
    let answers: [&[&'static str]; 4] = [
        &[],
        &["no-store"],
        &["private, max-age=60"],
        &["no-cache", "max-age=5"],
    ];
    for said in answers {
        let service =
            layer(MemoryStore::new()).layer(answering(&Runs::default(), move |_, _, _| {
                let mut response = response(StatusCode::CREATED, "done");
                for line in said {
                    let line = HeaderValue::from_static(line);
                    response.headers_mut().append(header::CACHE_CONTROL, line);
                }
                response
            }));
        for is_replay in [false, true] {
            let answer = send(&service, post("k", "{}")).await;
            assert_eq!(answer.is_replay(), is_replay);
            assert_eq!(lines(&answer, header::CACHE_CONTROL), said);
            for other in [header::EXPIRES, header::ETAG, header::LAST_MODIFIED] {
                assert!(!answer.head.headers.contains_key(other));
            }
        }
    }
}
